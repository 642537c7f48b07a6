import pytest
import torch
import torch.nn.functional as F
from my_attention import CausalAttention  # your own


def test_rows_sum_to_one():
    layer = CausalAttention(32, 4, max_len=64).eval()
    torch.nn.init.zeros_(layer.v_proj.weight)
    torch.nn.init.ones_(layer.v_proj.bias)
    out, _ = layer(torch.randn(2, 6, 32))
    torch.testing.assert_close(out, layer.out_proj(torch.ones(2, 6, 32)))


def test_future_does_not_matter():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    before, _ = layer(x)
    x[:, 4:] = 1e4 * torch.randn(2, 2, 32)
    after, _ = layer(x)
    assert torch.equal(after[:, :4], before[:, :4])


def test_first_token_reads_itself():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    out, _ = layer(x)
    torch.testing.assert_close(out[:, 0], layer.out_proj(layer.v_proj(x[:, 0])))


def test_agrees_with_pytorch():
    layer = CausalAttention(32, 4, max_len=64).double().eval()
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)


def test_grouped_heads_share_in_order():
    layer = CausalAttention(32, 4, max_len=64, num_kv_heads=2).eval()
    x = torch.randn(2, 6, 32)
    q, k, v = (
        p(x).unflatten(-1, (-1, 8)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)


def test_large_scores_are_finite():
    layer = CausalAttention(32, 4, max_len=64).eval()
    assert layer(1e3 * torch.randn(2, 6, 32))[0].isfinite().all()


def test_runs_in_float16():
    layer = CausalAttention(32, 4, max_len=64).eval()
    assert layer.half()(torch.randn(2, 6, 32).half())[0].isfinite().all()


def test_cached_equals_uncached():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    whole, _ = layer(x)
    for sizes in ([1, 1, 1, 1, 1, 1], [3, 3], [2, 1, 3]):
        cache, outs = None, []
        for piece in x.split(sizes, dim=1):
            out, cache = layer(piece, cache)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, dim=1), whole)


def test_an_item_alone_gives_the_same():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(3, 6, 32)
    torch.testing.assert_close(layer(x)[0][:1], layer(x[:1])[0])


def test_strides_do_not_matter():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(6, 2, 32).transpose(0, 1)  # (2, 6, 32), not contiguous
    torch.testing.assert_close(layer(x)[0], layer(x.contiguous())[0])


def test_every_parameter_gets_a_gradient():
    layer = CausalAttention(32, 4, max_len=64).eval()
    layer(torch.randn(2, 6, 32))[0].square().sum().backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def test_lengths_do_not_matter_after_a_norm():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x = torch.randn(2, 6, 32)
    before, _ = layer(x)
    for projection in (layer.q_proj, layer.k_proj):
        for parameter in projection.parameters():
            parameter.data *= 10
        torch.testing.assert_close(layer(x)[0], before)


def test_only_the_context_is_read():
    layer = CausalAttention(32, 4, max_len=64).eval()
    x, context = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
    before, _ = layer(x, context=context)
    x[:, 0] = torch.randn(2, 32)
    after, _ = layer(x, context=context)
    torch.testing.assert_close(after[:, 1:], before[:, 1:])


def test_eval_is_repeatable():
    layer = CausalAttention(32, 4, max_len=64, dropout=0.5).eval()
    x = torch.randn(2, 6, 32)
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_everything_moves_with_the_module():
    layer = CausalAttention(32, 4, max_len=64).eval()
    layer.to("meta")
    assert layer(torch.empty(2, 6, 32, device="meta"))[0].device.type == "meta"


def test_weights_load_at_another_length():
    longer = CausalAttention(32, 4, max_len=128)
    longer.load_state_dict(CausalAttention(32, 4, max_len=64).state_dict())


def test_a_text_too_long_is_refused_in_words():
    layer = CausalAttention(32, 4, max_len=64).eval()
    with pytest.raises(ValueError, match="at most 64"):
        layer(torch.randn(2, 65, 32))
