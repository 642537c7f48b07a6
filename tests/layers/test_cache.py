"""Caches: what `update` returns, how much memory it takes, and cached equals uncached for every split."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import alibi, causal, chunks, documents, full, padding, prefix, rule, tensor_mask, window
from regard.layers import Attention, KVCache, Rotary, SinkCache, WindowCache
from regard.layers.cache import mask_on_cached_keys
from tests.sampling import examples


def numbered(start, stop, batch=1):
    """Keys that hold their own position, and values that hold minus that."""
    positions = torch.arange(start, stop, dtype=torch.float32).view(1, 1, -1, 1).expand(batch, 2, -1, 3)
    return positions, -positions[..., :2]


def cuts(total, sizes):
    """`total` tokens cut into stretches of these sizes, over and over, the last as short as it must be."""
    edges, at = [], 0
    while at < total:
        for size in sizes:
            edges.append((at, min(at + size, total)))
            at = min(at + size, total)
    return edges


def run(layer, x, stretches, cache):
    with torch.no_grad():
        return torch.cat([layer(x[:, a:b], cache=cache) for a, b in stretches], 1)


class TestUpdate:
    @given(
        st.integers(0, 3),
        st.integers(1, 6),
        st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any),
        st.integers(1, 60),
    )
    @settings(max_examples=examples(150), deadline=None)
    def test_forgetful_ones_return_what_the_new_tokens_may_look_at(self, first, size, sizes, total):
        caches = [SinkCache(first, size)] + ([WindowCache(size)] if first == 0 else [])
        for cache in caches:
            for start, stop in cuts(total, sizes):
                keys, _ = cache.update(*numbered(start, stop))
                if start == stop:
                    continue
                kept = [i for i in range(start) if i < first or i > start - size]
                assert keys[0, 0, :, 0].tolist() == kept + list(range(start, stop))
                assert cache.length == stop

    def test_memory_is_bounded(self):
        fixed, small = KVCache(100), WindowCache(8)
        fixed.update(*numbered(0, 1))
        assert fixed.nbytes == 2 * 100 * (3 + 2) * 4
        small.update(*numbered(0, 5000))
        for i in range(5000, 5100):
            keys, _ = small.update(*numbered(i, i + 1))
            assert keys.shape[2] == 8
        assert small.nbytes == 2 * 16 * (3 + 2) * 4

    def test_maximum(self):
        cache = KVCache(max_length=4)
        cache.update(*numbered(0, 3))
        with pytest.raises(ValueError, match="at most max_length=4 tokens, got 3 held and 2 new"):
            cache.update(*numbered(3, 5))
        keys, _ = cache.update(*numbered(3, 4))  # the refused update left no trace
        assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3]

    def test_select_reset_and_repr(self):
        for cache in (KVCache(), WindowCache(3), SinkCache(1, 2)):
            k = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 2, 4, 5)
            cache.update(k, k)
            cache.select([2, 0, 0])
            keys, _ = cache.update(k[:, :, :1] + 10, k[:, :, :1])
            assert keys[:, 0, 0, 0].tolist() == [2, 0, 0]
            assert keys[:, 0, -1, 0].tolist() == [10, 11, 12]
            cache.select(torch.tensor([1]))
            assert cache.update(k[:1, :, :1], k[:1, :, :1])[0].shape[0] == 1
            cache.reset()
            assert cache.length == 0
            keys, _ = cache.update(k[:2, :1, :2, :3], k[:2, :1, :2, :3])  # another batch and width
            assert keys.shape == (2, 1, 2, 3)
        assert repr(SinkCache(4, 128)) == "SinkCache(first=4, size=128, length=0)"
        assert repr(WindowCache(7)) == "WindowCache(size=7, length=0)"
        with pytest.raises(ValueError, match="rows: expected whole numbers"):
            KVCache().select([0.5])

    def test_moves(self):
        cache = KVCache()
        cache.update(*numbered(0, 3))
        k, v = (x.double() for x in numbered(3, 4))
        with pytest.raises(ValueError, match=r"k: expected \(1, 2, T, 3\) in torch.float32 on cpu.*cache.to"):
            cache.update(k, v)
        keys, _ = cache.to(torch.float64).update(k, v)
        assert keys.dtype == torch.float64
        assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3]
        assert KVCache().to("cpu").nbytes == 0

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: KVCache(0), "max_length: expected a whole number of at least 1, got 0"),
            (lambda: WindowCache(0), "size: expected a whole number of at least 1, got 0"),
            (lambda: SinkCache(-1, 4), "first: expected a whole number of at least 0, got -1"),
            (lambda: KVCache().update(torch.ones(2, 3), torch.ones(2, 3)), r"k: expected \(B, G, T, D\)"),
            (
                lambda: KVCache().update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 2, 4)),
                r"v: expected \(1, 2, 3\) before the width, as k has, got \(1, 2, 2, 4\)",
            ),
        ],
    )
    def test_errors(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


KINDS = ["none", "half", "interleaved", "partial", "alibi"]


def make_layer(kind, heads, groups, mask, **more):
    rotary = {
        "half": Rotary(8),
        "interleaved": Rotary(8, interleaved=True),
        "partial": Rotary(4, base=100.0),
    }.get(kind)
    rule = mask & alibi(heads) if kind == "alibi" else mask
    layer = Attention(16, heads, num_kv_heads=groups, head_dim=8, rotary=rotary, mask=rule, **more)
    return layer.double().eval()


class TestCachedEqualsUncached:
    @given(
        kind=st.sampled_from(KINDS),
        layout=st.sampled_from([(1, 1), (4, 4), (4, 2), (3, 1)]),
        size=st.integers(1, 7),
        first=st.integers(0, 4),
        sizes=st.lists(st.integers(0, 15), min_size=1, max_size=4).filter(any),
        total=st.integers(1, 33),
        extras=st.booleans(),
        rule_on_layer=st.booleans(),
    )
    @settings(max_examples=examples(120), deadline=None)
    def test_any_layout(self, kind, layout, size, first, sizes, total, extras, rule_on_layer):
        """A forgetful cache imposes its own rule, whether or not the layer's mask has it already."""
        torch.manual_seed(1)
        x = torch.randn(2, total, 16, dtype=torch.float64)
        more = {"qk_norm": True, "softcap": 5.0, "sinks": True, "qkv_bias": True} if extras else {}
        for cache, own in (
            (KVCache(), window(size)),
            (WindowCache(size), window(size)),
            (SinkCache(first, size), window(size) | prefix(first)),
        ):
            layer = make_layer(kind, *layout, causal & own, **more)
            with torch.no_grad():
                uncached = layer(x)
            if not rule_on_layer and cache.rule is not None:
                layer.mask = causal & alibi(layout[0]) if kind == "alibi" else causal
            cached = run(layer, x, cuts(total, sizes), cache)
            assert torch.allclose(cached, uncached, rtol=0, atol=1e-12), cache

    @given(
        make=st.sampled_from([KVCache, lambda: WindowCache(4), lambda: SinkCache(2, 3)]),
        name=st.sampled_from(["chunks", "prefix", "rule", "not", "ahead", "window", "documents", "dense"]),
        sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
        total=st.integers(1, 24),
    )
    @settings(max_examples=examples(100), deadline=None)
    def test_rules_that_know_positions_still_hold_after_forgetting(self, make, name, sizes, total):
        torch.manual_seed(2)
        ids = torch.randint(0, 3, (2, total)).sort(-1).values
        bias = torch.randn(2, 4, total, total, dtype=torch.float64)

        def mask(start, stop):
            rules = {
                "chunks": chunks(5),
                "prefix": prefix(3),
                "rule": rule(lambda b, h, q, k: (q + k + h + b) % 3 > 0),
                "not": ~chunks(4) | window(1),
                "ahead": window(2, ahead=1),
                "window": window(9),
                "documents": documents(ids[:, :stop]),
                "dense": tensor_mask(bias[:, :, start:stop, :stop]),
            }
            return rules[name]

        x = torch.randn(2, total, 16, dtype=torch.float64)
        layer, cache = make_layer("half", 4, 2, causal), make()
        own = causal if cache.rule is None else cache.rule
        with torch.no_grad():
            uncached = layer(x, mask=mask(0, total) & own)
            parts = [layer(x[:, a:b], mask=mask(a, b), cache=cache) for a, b in cuts(total, sizes) if b > a]
        assert torch.allclose(torch.cat(parts, 1), uncached, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("kind", KINDS)
    def test_left_padding_gives_what_each_sequence_gives_alone(self, kind):
        torch.manual_seed(3)
        lengths, total = [9, 4, 6], 9
        x = torch.randn(3, total, 16, dtype=torch.float64)
        real = torch.arange(total) >= total - torch.tensor(lengths).view(-1, 1)
        for mask, cache in ((causal, KVCache()), (causal & window(3), WindowCache(3))):
            layer = make_layer(kind, 4, 2, mask)
            with torch.no_grad():
                parts = [
                    layer(x[:, a:b], mask=padding(real[:, :b]), cache=cache)
                    for a, b in ((0, 5), (5, 7), (7, 8), (8, 9))
                ]
                together = torch.cat(parts, 1)
                for row, length in enumerate(lengths):
                    alone = layer(x[row : row + 1, total - length :])[0]
                    assert torch.allclose(together[row, total - length :], alone, rtol=0, atol=1e-12)
            assert not together.isnan().any()  # padded queries may look at nothing

    def test_padding_that_holds_nan_never_matters(self):
        torch.manual_seed(4)
        x = torch.randn(2, 6, 16, dtype=torch.float64)
        real = torch.ones(2, 6, dtype=torch.bool)
        real[0, :2] = False
        spoilt = x.masked_fill(~real.unsqueeze(-1), torch.nan)
        layer, outputs = make_layer("half", 4, 2, causal), []
        for y in (x, spoilt):
            cache = KVCache()
            with torch.no_grad():
                layer(y[:, :4], mask=padding(real[:, :4]), cache=cache)
                outputs.append(layer(y[:, 4:], mask=padding(real), cache=cache))
        assert torch.equal(*outputs)

    @pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # processors without bfloat16 say so
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, dtype):
        torch.manual_seed(5)
        layer = make_layer("half", 4, 2, causal & window(5))
        x = torch.randn(2, 20, 16, dtype=torch.float64)
        with torch.no_grad():
            exact = layer(x)
            layer.to(dtype)
            uncached = layer(x.to(dtype))
        cached = run(layer, x.to(dtype), cuts(20, [7, 1, 1]), WindowCache(5))
        assert cached.dtype == dtype
        errors = [(y.double() - exact).abs().max() for y in (cached, uncached)]
        assert errors[0] <= 1.5 * errors[1] + 1e-4

    @pytest.mark.parametrize("make", [KVCache, lambda: WindowCache(3), lambda: SinkCache(1, 3)])
    def test_gradients_flow_through_the_cache(self, make):
        torch.manual_seed(6)
        x = torch.randn(1, 9, 16, dtype=torch.float64)
        gradients = []
        for cached in (False, True):
            cache = make()
            layer = make_layer("half", 4, 2, causal & cache.rule if cache.rule is not None else causal)
            torch.manual_seed(7)
            for weight in layer.parameters():
                torch.nn.init.normal_(weight)
            y = x.clone().requires_grad_()
            if cached:
                stretches = [(0, 4), (4, 5), (5, 6), (6, 9)]
                out = torch.cat([layer(y[:, a:b], cache=cache) for a, b in stretches], 1)
                run(layer, x, [(0, 1), (1, 3)], cache)  # steps without gradients leave the earlier ones good
            else:
                out = layer(y)
            out.square().sum().backward()
            gradients.append(y.grad)
        assert torch.allclose(*gradients, rtol=1e-10, atol=1e-12)

    def test_beams(self):
        """Reordering the batch of a cache is reordering the sequences."""
        torch.manual_seed(8)
        layer, x = make_layer("half", 4, 2, causal), torch.randn(3, 6, 16, dtype=torch.float64)
        cache, order = KVCache(), [2, 2, 0]
        with torch.no_grad():
            layer(x[:, :5], cache=cache)
            cache.select(order)
            last = layer(x[:, 5:], cache=cache)
            assert torch.allclose(
                last, layer(torch.cat([x[order, :5], x[:, 5:]], 1))[:, 5:], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("mask", [causal, window(3), causal.top_left, prefix(9), full, causal & window(2)])
def test_only_masks_that_hide_nothing_from_the_newest_query_are_left_out(mask):
    for n in range(1, 7):
        cache = KVCache()
        cache.update(torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2))
        left = mask_on_cached_keys(mask, cache, 1, n)
        assert torch.equal(left.to_dense(1, n), mask.to_dense(1, n))
    assert (left is full) == (mask in (causal, full))
