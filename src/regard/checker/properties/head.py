import pytest
import torch
import torch.nn.functional as F
from my_attention import CausalHead  # your own


def test_rows_sum_to_one():
    head = CausalHead(32, 16, max_len=64).eval()
    torch.nn.init.zeros_(head.value.weight)
    torch.nn.init.ones_(head.value.bias)
    out = head(torch.randn(2, 6, 32))
    torch.testing.assert_close(out, torch.ones_like(out))


def test_earlier_calls_do_not_matter():
    head, fresh = (CausalHead(32, 16, max_len=64).eval() for _ in range(2))
    fresh.load_state_dict(head.state_dict())
    x = torch.randn(2, 6, 32)
    head(x[:, :4])
    torch.testing.assert_close(head(x), fresh(x))


def test_future_does_not_matter():
    head = CausalHead(32, 16, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    before = head(x)
    x[:, 4:] = 1e4 * torch.randn(2, 2, 32)
    assert torch.equal(head(x)[:, :4], before[:, :4])


def test_first_token_reads_itself():
    head = CausalHead(32, 16, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(head(x)[:, 0], head.value(x)[:, 0])


def test_agrees_with_pytorch():
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    for head_size in (8, 16):
        head = CausalHead(32, head_size, max_len=64).double().eval()
        q, k, v = head.query(x), head.key(x), head.value(x)
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(head(x), expected)


def test_large_scores_are_finite():
    head = CausalHead(32, 16, max_len=64).eval()
    assert head(1e3 * torch.randn(2, 6, 32)).isfinite().all()


def test_runs_in_float16():
    head = CausalHead(32, 16, max_len=64).eval()
    assert head.half()(torch.randn(2, 6, 32).half()).isfinite().all()


def test_an_item_alone_gives_the_same():
    head = CausalHead(32, 16, max_len=64).eval()
    x = torch.randn(3, 6, 32)
    torch.testing.assert_close(head(x)[:1], head(x[:1]))


def test_every_parameter_gets_a_gradient():
    head = CausalHead(32, 16, max_len=64).eval()
    head(torch.randn(2, 6, 32)).square().sum().backward()
    assert [name for name, p in head.named_parameters() if p.grad is None] == []


def test_eval_is_repeatable():
    head = CausalHead(32, 16, max_len=64, dropout=0.5).eval()
    x = torch.randn(2, 6, 32)
    assert torch.equal(head(x), head(x))


def test_dropout_drops_whole_tokens():
    head = CausalHead(32, 16, max_len=64, dropout=0.5).train()
    x = torch.randn(200, 6, 32)
    factors = head(x)[:, 0] / head.value(x)[:, 0]  # (200, 16)
    dropped = factors.mean(dim=-1) < 1
    torch.testing.assert_close(factors[dropped], torch.zeros_like(factors[dropped]))
    torch.testing.assert_close(factors[~dropped], torch.full_like(factors[~dropped], 2.0))
    assert 0 < dropped.sum() < 200


def test_dropout_has_its_rate():
    head = CausalHead(32, 16, max_len=64, dropout=0.2).train()
    x = torch.randn(500, 6, 32)
    factors = (head(x)[:, 0] / head.value(x)[:, 0]).mean(dim=-1)  # (500,)
    kept = factors[factors > 0.1]
    torch.testing.assert_close(kept, torch.full_like(kept, 1.25))
    assert 300 < len(kept) < 500


def test_everything_moves_with_the_module():
    head = CausalHead(32, 16, max_len=64).eval()
    head.to("meta")
    assert head(torch.empty(2, 6, 32, device="meta")).device.type == "meta"


def test_saved_weights_are_all_weights():
    copy = CausalHead(32, 16, max_len=64).eval()
    head = CausalHead(32, 16, max_len=64).eval()
    copy.load_state_dict(head.state_dict())
    x = torch.randn(2, 6, 32)
    assert torch.equal(copy(x), head(x))


def test_weights_load_at_another_length():
    longer = CausalHead(32, 16, max_len=128)
    longer.load_state_dict(CausalHead(32, 16, max_len=64).state_dict())


def test_a_text_too_long_is_refused_in_words():
    head = CausalHead(32, 16, max_len=64).eval()
    with pytest.raises(ValueError, match="at most 64"):
        head(torch.randn(2, 65, 32))
