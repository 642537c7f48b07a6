"""The layer: against PyTorch's own, its options one by one, gradients, dtypes, and its errors."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard import alibi, causal, padding, window
from regard.attention.masks.named_masks import alibi_slopes
from regard.layers import Attention, KVCache, Rotary, SinkCache, WindowCache
from tests.refusals import refused
from tests.sampling import share


def like_pytorch(heads=4, width=16, bias=True):
    """A layer of ours and one of PyTorch's with the same weights, in float64."""
    theirs = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True).double().eval()
    ours = Attention(width, heads, qkv_bias=bias, out_bias=bias).double().eval()
    weights = {"qkv.weight": theirs.in_proj_weight, "out.weight": theirs.out_proj.weight}
    if bias:
        for x in (theirs.in_proj_bias, theirs.out_proj.bias):
            nn.init.normal_(x)
        weights |= {"qkv.bias": theirs.in_proj_bias, "out.bias": theirs.out_proj.bias}
    ours.load_state_dict({name: x.detach().clone() for name, x in weights.items()})
    return ours, theirs


class TestAgainstPyTorch:
    @given(st.sampled_from([1, 2, 4]), st.booleans(), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
    def test_self_and_cross_attention(self, heads, bias, B, T, S):
        ours, theirs = like_pytorch(heads, bias=bias)
        x, context = torch.randn(B, T, 16).double(), torch.randn(B, S, 16).double()
        forbidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        pairs = [
            (ours(x), theirs(x, x, x)[0]),
            (ours(x, mask=causal), theirs(x, x, x, attn_mask=forbidden)[0]),
            (ours(x, context), theirs(x, context, context)[0]),
        ]
        for mine, expected in pairs:
            assert torch.allclose(mine, expected, rtol=0, atol=1e-12)

    def test_padding(self):
        ours, theirs = like_pytorch()
        x, lengths = torch.randn(2, 5, 16).double(), torch.tensor([5, 3])
        expected, _ = theirs(x, x, x, key_padding_mask=torch.arange(5) >= lengths[:, None])
        assert torch.allclose(ours(x, mask=padding(lengths)), expected, rtol=0, atol=1e-12)


class TestOptions:
    def test_qk_norm_makes_scores_blind_to_the_size_of_the_projections(self):
        layer = Attention(16, 4, num_kv_heads=2, qk_norm=True, norm_eps=1e-30).double()
        x = torch.randn(2, 5, 16).double()
        before = layer(x)
        with torch.no_grad():
            layer.qkv.weight[: 6 * 4] *= 3.0  # queries and keys, not values
        assert torch.allclose(layer(x), before, rtol=0, atol=1e-12)

    def test_alibi_against_a_dense_bias(self):
        layer, x = Attention(16, 4, mask=causal & alibi(4)).double(), torch.randn(2, 6, 16).double()
        distance = (torch.arange(6)[:, None] - torch.arange(6)[None, :]).abs()
        bias = -torch.tensor(alibi_slopes(4)).double().view(4, 1, 1) * distance
        expected = layer(x)
        layer.mask = causal
        assert torch.allclose(layer(x, mask=bias), expected, rtol=0, atol=1e-12)

    def test_a_call_narrows_the_layer_s_rule(self):
        layer, x = Attention(16, 4, mask=causal), torch.randn(2, 6, 16)
        select = layer(x, mask=window(2))
        layer.mask = causal & window(2)
        assert torch.allclose(select, layer(x), rtol=0, atol=1e-6)
        layer.mask = causal
        assert torch.allclose(select, layer(x, mask=window(2).to_dense(6)), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("option", [{"scale": 0.1}, {"softcap": 1.5}, {"sinks": True}])
    def test_options_of_attend_reach_it(self, option):
        layer, x = Attention(16, 4, num_kv_heads=2, **option).double(), torch.randn(2, 5, 16).double()
        q, k, v = layer.qkv(x).view(2, 5, 8, 4).transpose(1, 2).split((4, 2, 2), 1)
        if "sinks" in option:
            nn.init.normal_(layer.sinks)
            option = {"sinks": layer.sinks}
        mixed, _ = regard.scaled_dot_product_attention(q, k, v, **option)
        plain, _ = regard.scaled_dot_product_attention(q, k, v)
        assert torch.allclose(layer(x), layer.out(mixed.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)
        assert not torch.allclose(mixed, plain, rtol=0, atol=1e-4)

    def test_rotary_counts_tokens_and_takes_positions(self):
        layer = Attention(16, 4, rotary=Rotary(4), mask=causal).double()
        x = torch.randn(2, 5, 16).double()
        assert torch.equal(layer(x, positions=torch.arange(5)), layer(x))
        shifted = layer(x, positions=torch.tensor([[40], [700]]) + torch.arange(5))
        assert torch.allclose(shifted, layer(x), rtol=0, atol=1e-11)  # only distances matter
        stretched = layer(x, positions=3 * torch.arange(5))
        assert not torch.allclose(stretched, layer(x), rtol=0, atol=1e-3)

    def test_a_cache_of_the_context(self):
        """The context is projected once; an empty one afterwards looks at what the cache holds."""
        layer, cache = Attention(16, 4, num_kv_heads=2).double(), KVCache()
        x, context = torch.randn(2, 3, 16).double(), torch.randn(2, 7, 16).double()
        first = layer(x[:, :1], context, cache=cache)
        rest = layer(x[:, 1:], context[:, :0], cache=cache)
        assert cache.length == 7
        assert torch.allclose(torch.cat((first, rest), 1), layer(x, context), rtol=0, atol=1e-12)

    @pytest.mark.at_length("test_dropout_drops_weights_and_keeps_their_mean")
    def test_dropout_only_in_training(self):
        layer, x = Attention(16, 4, dropout=0.5), torch.randn(2, 8, 16)
        still = Attention(16, 4)
        still.load_state_dict(layer.state_dict())
        assert not torch.allclose(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), still(x))
        mean = torch.stack([layer.train()(x) for _ in range(600)]).mean(0)
        assert (mean - still(x)).abs().mean() < 0.03  # rescaled, so right on average

    def test_an_onlooker_can_stand_in_for_attend(self):
        layer, seen = Attention(16, 4, num_kv_heads=2, mask=causal), []
        real = layer.attend

        def onlooker(q, k, v, mask):
            seen.append((tuple(q.shape), tuple(k.shape), str(mask)))
            return real(q, k, v, mask)

        layer.attend = onlooker
        layer(torch.randn(2, 5, 16))
        assert seen == [((2, 4, 5, 4), (2, 2, 5, 4), "causal")]


class TestState:
    @pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # processors without bfloat16 say so
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        layer = Attention(32, 4, num_kv_heads=2, rotary=Rotary(8), mask=causal, qk_norm=True).to(dtype)
        x = torch.randn(2, 9, 32).to(dtype)
        exact = copy.deepcopy(layer).double()(x.double())
        assert layer(x).dtype == dtype
        assert (layer(x) - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


class TestGradients:
    @pytest.mark.parametrize("interleaved", share([True, False], 2))
    def test_gradcheck(self, interleaved):
        layer = Attention(
            6,
            2,
            num_kv_heads=1,
            head_dim=4,
            qkv_bias=True,
            out_bias=True,
            qk_norm=True,
            rotary=Rotary(2, interleaved=interleaved),
            mask=causal & alibi(2),
            softcap=3.0,
            sinks=True,
        ).double()
        names = [name for name, _ in layer.named_parameters()]
        x = torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True)

        def run(x, *weights):
            return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

        assert torch.autograd.gradcheck(run, (x, *layer.parameters()))

    def test_rows_that_may_look_at_nothing(self):
        layer = Attention(16, 4, mask=causal, rotary=Rotary(4))
        x = torch.randn(2, 5, 16, requires_grad=True)
        real = torch.tensor([[False, False, True, True, True], [True] * 5])
        out = layer(x, mask=padding(real))
        assert torch.equal(out[0, :2], torch.zeros(2, 16))
        out.sum().backward()
        assert x.grad.isfinite().all()


class TestEmpty:
    @pytest.mark.parametrize("make", [KVCache, lambda: WindowCache(3), lambda: SinkCache(1, 2), lambda: None])
    def test_empty_sequences_and_batches(self, make):
        layer = Attention(16, 4, num_kv_heads=2, rotary=Rotary(4), mask=causal)
        with torch.no_grad():
            assert layer(torch.randn(2, 0, 16), cache=make()).shape == (2, 0, 16)
            assert layer(torch.randn(0, 3, 16), cache=make()).shape == (0, 3, 16)
            cache = make()
            out = layer(torch.randn(2, 5, 16), cache=cache)
            assert out.shape == (2, 5, 16)
            assert layer(torch.randn(2, 0, 16), cache=cache).shape == (2, 0, 16)


X = torch.zeros(2, 3, 16)


test_errors = refused(
    [
        (lambda: Attention(10, 3), "num_heads: expected a divisor of d_model=10, got 3; or give head_dim"),
        (lambda: Attention(12, 4, num_kv_heads=3), "num_kv_heads: expected a divisor of num_heads=4, got 3"),
        (lambda: Attention(12, 4, num_kv_heads=0), "num_kv_heads: expected a whole number of at least 1"),
        (lambda: Attention(0, 4), "d_model: expected a whole number of at least 1, got 0"),
        (lambda: Attention(16, 4.0), "num_heads: expected a whole number of at least 1, got 4.0"),
        (lambda: Attention(16, 4, head_dim=-1), "head_dim: expected a whole number of at least 1, got -1"),
        (lambda: Attention(16, 4, rotary=Rotary(6)), "rotary: expected a width of at most 4"),
        (lambda: Attention(16, 4, mask=torch.ones(3, 3)), "mask: expected a mask, such as regard.causal"),
        (lambda: Attention(16, 4, dropout=1.5), "dropout: expected a probability from 0 to 1, got 1.5"),
        (lambda: Attention(16, 4, softcap=0), "softcap: expected a number above 0, or None, got 0"),
        (lambda: Attention(16, 4)(X[0]), r"x: expected \(batch, length, 16\), got \(3, 16\)"),
        (lambda: Attention(16, 4)(X[..., :8]), r"x: expected \(batch, length, 16\), got \(2, 3, 8\)"),
        (
            lambda: Attention(16, 4)(X.double()),
            "x: expected torch.float32, as the weights are, got torch.float64",
        ),
        (lambda: Attention(16, 4)(X, X[:1]), r"context: expected \(2, length, 16\), got \(1, 3, 16\)"),
        (
            lambda: Attention(16, 4)(X, cache=[KVCache()]),
            "cache: expected a KVCache for this layer, got list",
        ),
        (lambda: Attention(16, 4)(X, mask=torch.ones(3, 3)), "holds only 0 and 1.*pass .bool"),
        (lambda: Attention(16, 4, mask=alibi(3))(X), "expected a slope for each of the 4 heads, got 3"),
        (lambda: Attention(16, 4)(X, cache=KVCache(2)), "at most max_length=2 tokens, got 0 held and 3 new"),
        (
            lambda: Attention(16, 4, rotary=Rotary(4))(X, X, positions=torch.arange(3)),
            "positions: expected None with a context",
        ),
        (
            lambda: Attention(16, 4, rotary=Rotary(4))(X, positions=torch.arange(4)),
            r"positions: expected \(3,\) or \(2, 3\)",
        ),
    ]
)
