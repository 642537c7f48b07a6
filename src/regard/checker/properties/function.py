import torch
import torch.nn.functional as F
from my_attention import attention  # your own


def test_rows_sum_to_one():
    q, k = torch.randn(2, 2, 4, 6, 16)
    v = torch.ones(2, 4, 6, 16)
    torch.testing.assert_close(attention(q, k, v, is_causal=True), v)


def test_inputs_are_kept():
    inputs = torch.randn(3, 2, 4, 6, 16)
    before = inputs.clone()
    attention(*inputs, is_causal=True)
    assert torch.equal(inputs, before)


def test_earlier_calls_do_not_matter():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], is_causal=True)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attention(q, k, v, is_causal=True), expected)


def test_future_does_not_matter():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    before = attention(q, k, v, is_causal=True)
    k[:, :, 4:] = 1e4 * torch.randn(2, 4, 2, 16)
    v[:, :, 4:] = torch.randn(2, 4, 2, 16)
    after = attention(q, k, v, is_causal=True)
    assert torch.equal(after[:, :, :4], before[:, :, :4])


def test_future_does_not_matter_under_a_soft_cap():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    before = attention(q, k, v, is_causal=True, softcap=5.0)
    v[:, :, 4:] = torch.randn(2, 4, 2, 16)
    after = attention(q, k, v, is_causal=True, softcap=5.0)
    assert torch.equal(after[:, :, :4], before[:, :, :4])


def test_first_token_reads_itself():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    out = attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])


def test_agrees_with_pytorch():
    for D in (8, 16, 32):
        q, k, v = torch.randn(3, 2, 4, 6, D, dtype=torch.float64)
        for is_causal in (True, False):
            expected = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            torch.testing.assert_close(attention(q, k, v, is_causal=is_causal), expected)


def test_grouped_heads_share_in_order():
    q = torch.randn(2, 4, 6, 16)
    k, v = torch.randn(2, 2, 2, 6, 16)  # two key/value heads for four query heads
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v), expected)


def test_large_scores_are_finite():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    assert attention(1e4 * q, k, v).isfinite().all()


def test_runs_in_float16():
    q, k, v = torch.randn(3, 2, 4, 6, 16).half()
    assert attention(q, k, v, is_causal=True).isfinite().all()


def test_empty_rows_are_zero():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False  # query 2 sees nothing
    out = attention(q, k, v, mask=mask)
    assert torch.equal(out[:, :, 2], torch.zeros(2, 4, 16))


def test_nan_stays_in_the_padding():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:, 4:] = False  # two padded keys
    k[:, :, 4:] = v[:, :, 4:] = float("nan")
    assert attention(q, k, v, mask=mask).isfinite().all()


def test_padding_does_not_matter():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    is_token = torch.tensor([[True] * 4 + [False] * 2] * 2)
    padded = attention(q, k, v, key_padding_mask=is_token)
    torch.testing.assert_close(padded, attention(q, k[:, :, :4], v[:, :, :4]))


def test_every_item_has_its_own_padding():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    is_token = torch.arange(6) < torch.tensor([[3], [5]])
    together = attention(q, k, v, key_padding_mask=is_token)
    for b, n in enumerate((3, 5)):
        alone = attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        torch.testing.assert_close(together[b : b + 1], alone)


def test_a_mask_and_causality_add_up():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    mask = (torch.arange(6) != 2).expand(6, 6)
    out = attention(q, k, v, mask=mask, is_causal=True)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tril())
    torch.testing.assert_close(out, expected)


def test_two_masks_add_up():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    mask = (torch.arange(6) != 2).expand(6, 6)
    is_token = (torch.arange(6) < 4).expand(2, 6)
    out = attention(q, k, v, mask=mask, key_padding_mask=is_token)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask & is_token[:, None, None, :])
    torch.testing.assert_close(out, expected)


def test_a_scale_is_used():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.7)
    torch.testing.assert_close(attention(q, k, v, scale=0.7), expected)


def test_a_window_of_one_is_the_token_itself():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    torch.testing.assert_close(attention(q, k, v, is_causal=True, window=1), v)


def test_a_soft_cap_has_two_limits():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    torch.testing.assert_close(attention(q, k, v, softcap=1e4), attention(q, k, v))
    mean = v.mean(dim=-2, keepdim=True).expand_as(v)
    torch.testing.assert_close(attention(q, k, v, softcap=1e-6), mean)


def test_a_bias_is_added_to_the_scaled_scores():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    bias = torch.randn(6, 6)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(attention(q, k, v, mask=bias), expected)


def test_cached_equals_uncached():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    whole = attention(q, k, v, is_causal=True)
    newest = attention(q[:, :, 4:], k, v, is_causal=True)  # two new queries, six keys
    torch.testing.assert_close(newest, whole[:, :, 4:])


def test_an_item_alone_gives_the_same():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    alone = attention(q[:1], k[:1], v[:1])
    torch.testing.assert_close(attention(q, k, v)[:1], alone)


def test_every_parameter_gets_a_gradient():
    q, k, v = (torch.randn(2, 4, 6, 16, requires_grad=True) for _ in range(3))
    attention(q, k, v).square().sum().backward()
    assert all(t.grad is not None for t in (q, k, v))


def test_lse_is_natural():
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    _, lse = attention(q, k, v)
    torch.testing.assert_close(lse, torch.logsumexp(q @ k.mT / 16**0.5, dim=-1))
