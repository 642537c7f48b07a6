"""Tests of properties that attention has, as source text: for the page of each mistake, and to paste.

Each property is one test, in a version for every template of `examples` to which it applies. It imports what
it tests from `my_attention`, the reader's file. A mistake names the test that finds it.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from regard.checker.kernel_property_tests import KERNEL_CODES
from regard.checker.mistakes.mistake import Mistake

MODULE = "my_attention"  # where a test imports from
_SUBJECTS = {
    "function": ("attention", ""),
    "head": ("CausalHead", "head = CausalHead(32, 16, max_len=64).eval()\n"),
    "layer": ("CausalAttention", "layer = CausalAttention(32, 4, max_len=64).eval()\n"),
    "rotary": ("CausalRotaryAttention", "layer = CausalRotaryAttention(32, 4).eval()\n"),
    "alibi": ("CausalAlibiAttention", "layer = CausalAlibiAttention(32, 4).eval()\n"),
}


@dataclass(frozen=True)
class PropertyTest:
    """A property that right attention has, and a test of it for each template."""

    name: str
    property: str  # what holds, in a sentence
    codes: dict[str, str]  # by template: a test file, complete but for the reader's own module


def _test(name: str, sentence: str, **bodies: str) -> PropertyTest:
    """Make a test from its bodies, by template. A body for several templates is named `head_layer`."""
    codes = {}
    for kinds, body in bodies.items():
        for kind in kinds.split("_"):
            subject, setup = _SUBJECTS[kind]
            codes[kind] = _code(name, subject, "" if subject + "(" in body else setup, body)
    codes |= KERNEL_CODES.get(name, {})
    return PropertyTest(name, sentence, codes)


def _code(name: str, subject: str, setup: str, body: str) -> str:
    body = textwrap.dedent(body).strip("\n") + "\n"
    imports = [
        line
        for line, used in (
            ("import pytest\n", "pytest."),
            ("import torch\n", ""),
            ("import torch.nn.functional as F\n", "F."),
        )
        if used in body
    ]
    names = subject + (", rotate" if "rotate(" in body else "")
    return (
        "".join(imports)
        + f"from {MODULE} import {names}  # your own\n\n\n"
        + f"def test_{name.replace('-', '_')}():\n"
        + textwrap.indent(setup + body, "    ")
    )


_CACHED = """
    x = torch.randn(2, 6, 32)
    whole, _ = layer(x)
    for sizes in ([1, 1, 1, 1, 1, 1], [3, 3], [2, 1, 3]):
        cache, outs = None, []
        for piece in x.split(sizes, dim=1):
            out, cache = layer(piece, cache)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, dim=1), whole)
"""

_TESTS = (
    _test(
        "rows-sum-to-one",
        "The weights of a row sum to 1, so where every value is 1 the output is 1.",
        function="""
            q, k = torch.randn(2, 2, 4, 6, 16)
            v = torch.ones(2, 4, 6, 16)
            torch.testing.assert_close(attention(q, k, v, is_causal=True), v)
        """,
        head="""
            torch.nn.init.zeros_(head.value.weight)
            torch.nn.init.ones_(head.value.bias)
            out = head(torch.randn(2, 6, 32))
            torch.testing.assert_close(out, torch.ones_like(out))
        """,
        layer="""
            torch.nn.init.zeros_(layer.v_proj.weight)
            torch.nn.init.ones_(layer.v_proj.bias)
            out, _ = layer(torch.randn(2, 6, 32))
            torch.testing.assert_close(out, layer.out_proj(torch.ones(2, 6, 32)))
        """,
    ),
    _test(
        "inputs-are-kept",
        "A call leaves its inputs as they were.",
        function="""
            inputs = torch.randn(3, 2, 4, 6, 16)
            before = inputs.clone()
            attention(*inputs, is_causal=True)
            assert torch.equal(inputs, before)
        """,
    ),
    _test(
        "earlier-calls-do-not-matter",
        "A call gives the same output after a call on a shorter text as without it.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], is_causal=True)
            expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.testing.assert_close(attention(q, k, v, is_causal=True), expected)
        """,
        head="""
            head, fresh = (CausalHead(32, 16, max_len=64).eval() for _ in range(2))
            fresh.load_state_dict(head.state_dict())
            x = torch.randn(2, 6, 32)
            head(x[:, :4])
            torch.testing.assert_close(head(x), fresh(x))
        """,
    ),
    _test(
        "future-does-not-matter",
        "A causal output does not move when a later token does: not by one bit, however loud the token.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            before = attention(q, k, v, is_causal=True)
            k[:, :, 4:] = 1e4 * torch.randn(2, 4, 2, 16)
            v[:, :, 4:] = torch.randn(2, 4, 2, 16)
            after = attention(q, k, v, is_causal=True)
            assert torch.equal(after[:, :, :4], before[:, :, :4])
        """,
        head="""
            x = torch.randn(2, 6, 32)
            before = head(x)
            x[:, 4:] = 1e4 * torch.randn(2, 2, 32)
            assert torch.equal(head(x)[:, :4], before[:, :4])
        """,
        layer="""
            x = torch.randn(2, 6, 32)
            before, _ = layer(x)
            x[:, 4:] = 1e4 * torch.randn(2, 2, 32)
            after, _ = layer(x)
            assert torch.equal(after[:, :4], before[:, :4])
        """,
    ),
    _test(
        "future-does-not-matter-under-a-soft-cap",
        "A soft cap does not make hidden keys visible.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            before = attention(q, k, v, is_causal=True, softcap=5.0)
            v[:, :, 4:] = torch.randn(2, 4, 2, 16)
            after = attention(q, k, v, is_causal=True, softcap=5.0)
            assert torch.equal(after[:, :, :4], before[:, :, :4])
        """,
    ),
    _test(
        "first-token-reads-itself",
        "The first token of a causal text sees only itself: its output is its own value.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            out = attention(q, k, v, is_causal=True)
            torch.testing.assert_close(out[:, :, 0], v[:, :, 0])
        """,
        head="""
            x = torch.randn(2, 6, 32)
            torch.testing.assert_close(head(x)[:, 0], head.value(x)[:, 0])
        """,
        layer="""
            x = torch.randn(2, 6, 32)
            out, _ = layer(x)
            torch.testing.assert_close(out[:, 0], layer.out_proj(layer.v_proj(x[:, 0])))
        """,
    ),
    _test(
        "agrees-with-pytorch",
        "In float64 the output is that of F.scaled_dot_product_attention, at every width.",
        function="""
            for D in (8, 16, 32):
                q, k, v = torch.randn(3, 2, 4, 6, D, dtype=torch.float64)
                for is_causal in (True, False):
                    expected = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
                    torch.testing.assert_close(attention(q, k, v, is_causal=is_causal), expected)
        """,
        head="""
            x = torch.randn(2, 6, 32, dtype=torch.float64)
            for head_size in (8, 16):
                head = CausalHead(32, head_size, max_len=64).double().eval()
                q, k, v = head.query(x), head.key(x), head.value(x)
                expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                torch.testing.assert_close(head(x), expected)
        """,
        layer="""
            layer = CausalAttention(32, 4, max_len=64).double().eval()
            x = torch.randn(2, 6, 32, dtype=torch.float64)
            q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x)[0], expected)
        """,
    ),
    _test(
        "grouped-heads-share-in-order",
        "Query head h uses key/value head h // (H // G).",
        function="""
            q = torch.randn(2, 4, 6, 16)
            k, v = torch.randn(2, 2, 2, 6, 16)  # two key/value heads for four query heads
            expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            torch.testing.assert_close(attention(q, k, v), expected)
        """,
        layer="""
            layer = CausalAttention(32, 4, max_len=64, num_kv_heads=2).eval()
            x = torch.randn(2, 6, 32)
            q, k, v = (
                p(x).unflatten(-1, (-1, 8)).transpose(1, 2)
                for p in (layer.q_proj, layer.k_proj, layer.v_proj)
            )
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x)[0], expected)
        """,
    ),
    _test(
        "large-scores-are-finite",
        "Scores in the thousands give weights of 0 and 1, not NaN.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            assert attention(1e4 * q, k, v).isfinite().all()
        """,
        head="""
            assert head(1e3 * torch.randn(2, 6, 32)).isfinite().all()
        """,
        layer="""
            assert layer(1e3 * torch.randn(2, 6, 32))[0].isfinite().all()
        """,
    ),
    _test(
        "runs-in-float16",
        "It runs in float16, where −1e9 does not exist.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16).half()
            assert attention(q, k, v, is_causal=True).isfinite().all()
        """,
        head="""
            assert head.half()(torch.randn(2, 6, 32).half()).isfinite().all()
        """,
        layer="""
            assert layer.half()(torch.randn(2, 6, 32).half())[0].isfinite().all()
        """,
    ),
    _test(
        "empty-rows-are-zero",
        "A query that sees no key gets an output of 0, not NaN.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            mask = torch.ones(6, 6, dtype=torch.bool)
            mask[2] = False  # query 2 sees nothing
            out = attention(q, k, v, mask=mask)
            assert torch.equal(out[:, :, 2], torch.zeros(2, 4, 16))
        """,
    ),
    _test(
        "nan-stays-in-the-padding",
        "What stands in hidden positions does not matter, not even NaN.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            mask = torch.ones(6, 6, dtype=torch.bool)
            mask[:, 4:] = False  # two padded keys
            k[:, :, 4:] = v[:, :, 4:] = float("nan")
            assert attention(q, k, v, mask=mask).isfinite().all()
        """,
    ),
    _test(
        "padding-does-not-matter",
        "A padded text gives the same output as the text alone.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            is_token = torch.tensor([[True] * 4 + [False] * 2] * 2)
            padded = attention(q, k, v, key_padding_mask=is_token)
            torch.testing.assert_close(padded, attention(q, k[:, :, :4], v[:, :, :4]))
        """,
    ),
    _test(
        "every-item-has-its-own-padding",
        "Texts of different lengths in one batch give the same outputs as each alone.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            is_token = torch.arange(6) < torch.tensor([[3], [5]])
            together = attention(q, k, v, key_padding_mask=is_token)
            for b, n in enumerate((3, 5)):
                alone = attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
                torch.testing.assert_close(together[b : b + 1], alone)
        """,
    ),
    _test(
        "a-mask-and-causality-add-up",
        "With a mask and causality at once, a key is visible if both allow it.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            mask = (torch.arange(6) != 2).expand(6, 6)
            out = attention(q, k, v, mask=mask, is_causal=True)
            expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tril())
            torch.testing.assert_close(out, expected)
        """,
    ),
    _test(
        "two-masks-add-up",
        "With a mask and a padding mask at once, a key is visible if both allow it.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            mask = (torch.arange(6) != 2).expand(6, 6)
            is_token = (torch.arange(6) < 4).expand(2, 6)
            out = attention(q, k, v, mask=mask, key_padding_mask=is_token)
            expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask & is_token[:, None, None, :])
            torch.testing.assert_close(out, expected)
        """,
    ),
    _test(
        "a-scale-is-used",
        "A scale that is given takes the place of 1/√D.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            expected = F.scaled_dot_product_attention(q, k, v, scale=0.7)
            torch.testing.assert_close(attention(q, k, v, scale=0.7), expected)
        """,
    ),
    _test(
        "a-window-of-one-is-the-token-itself",
        "In the narrowest window a token sees only itself: the output is its own value.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            torch.testing.assert_close(attention(q, k, v, is_causal=True, window=1), v)
        """,
    ),
    _test(
        "a-soft-cap-has-two-limits",
        "A huge soft cap changes nothing, and a tiny one makes the weights uniform.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            torch.testing.assert_close(attention(q, k, v, softcap=1e4), attention(q, k, v))
            mean = v.mean(dim=-2, keepdim=True).expand_as(v)
            torch.testing.assert_close(attention(q, k, v, softcap=1e-6), mean)
        """,
    ),
    _test(
        "a-bias-is-added-to-the-scaled-scores",
        "A float mask is added as it is, after the scale.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            bias = torch.randn(6, 6)
            expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            torch.testing.assert_close(attention(q, k, v, mask=bias), expected)
        """,
    ),
    _test(
        "cached-equals-uncached",
        "A text in pieces, with a cache, gives the same output as the text at once, wherever it is cut.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            whole = attention(q, k, v, is_causal=True)
            newest = attention(q[:, :, 4:], k, v, is_causal=True)  # two new queries, six keys
            torch.testing.assert_close(newest, whole[:, :, 4:])
        """,
        layer_rotary=_CACHED,
    ),
    _test(
        "an-item-alone-gives-the-same",
        "An item of a batch gives the same output alone.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            alone = attention(q[:1], k[:1], v[:1])
            torch.testing.assert_close(attention(q, k, v)[:1], alone)
        """,
        head="""
            x = torch.randn(3, 6, 32)
            torch.testing.assert_close(head(x)[:1], head(x[:1]))
        """,
        layer="""
            x = torch.randn(3, 6, 32)
            torch.testing.assert_close(layer(x)[0][:1], layer(x[:1])[0])
        """,
    ),
    _test(
        "strides-do-not-matter",
        "An input that is not contiguous in memory gives the same output.",
        layer="""
            x = torch.randn(6, 2, 32).transpose(0, 1)  # (2, 6, 32), not contiguous
            torch.testing.assert_close(layer(x)[0], layer(x.contiguous())[0])
        """,
    ),
    _test(
        "every-parameter-gets-a-gradient",
        "Every parameter gets a gradient.",
        function="""
            q, k, v = (torch.randn(2, 4, 6, 16, requires_grad=True) for _ in range(3))
            attention(q, k, v).square().sum().backward()
            assert all(t.grad is not None for t in (q, k, v))
        """,
        head="""
            head(torch.randn(2, 6, 32)).square().sum().backward()
            assert [name for name, p in head.named_parameters() if p.grad is None] == []
        """,
        layer="""
            layer(torch.randn(2, 6, 32))[0].square().sum().backward()
            assert [name for name, p in layer.named_parameters() if p.grad is None] == []
        """,
    ),
    _test(
        "lengths-do-not-matter-after-a-norm",
        "With norms on queries and keys, longer queries or keys change nothing.",
        layer="""
            x = torch.randn(2, 6, 32)
            before, _ = layer(x)
            for projection in (layer.q_proj, layer.k_proj):
                for parameter in projection.parameters():
                    parameter.data *= 10
                torch.testing.assert_close(layer(x)[0], before)
        """,
    ),
    _test(
        "only-the-context-is-read",
        "In cross-attention a query reads the context, and no other token of its own sequence.",
        layer="""
            x, context = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
            before, _ = layer(x, context=context)
            x[:, 0] = torch.randn(2, 32)
            after, _ = layer(x, context=context)
            torch.testing.assert_close(after[:, 1:], before[:, 1:])
        """,
    ),
    _test(
        "a-repeated-token-gives-the-same-everywhere",
        "If all tokens are the same, so are all values, and every position gives the same output.",
        rotary="""
            x = torch.randn(2, 1, 32).expand(2, 6, 32)
            out, _ = layer(x)
            torch.testing.assert_close(out, out[:, :1].expand_as(out))
        """,
    ),
    _test(
        "a-rotation-keeps-lengths",
        "A rotation changes directions, not lengths.",
        rotary="""
            x = torch.randn(2, 4, 6, 8)
            torch.testing.assert_close(rotate(x, 0).norm(dim=-1), x.norm(dim=-1))
        """,
    ),
    _test(
        "order-matters",
        "The last token tells one order of the earlier ones from another.",
        rotary="""
            x = torch.randn(1, 6, 32)
            shuffled = x[:, [3, 1, 4, 0, 2, 5]]
            apart = layer(x)[0][:, -1] - layer(shuffled)[0][:, -1]
            assert apart.abs().max() > 1e-3
        """,
    ),
    _test(
        "rotations-agree-with-complex-numbers",
        "Queries and keys at position p are turned by p times each pair's angle, the same way.",
        rotary="""
            def turn(t):  # channels i and i + D/2 as one complex number
                T, D = t.shape[-2:]
                angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
                z = torch.complex(*t.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
                return torch.cat([z.real, z.imag], dim=-1)

            x = torch.randn(2, 6, 32)
            q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
            heads = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
            expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x)[0], expected)
        """,
    ),
    _test(
        "alibi-agrees-with-its-formula",
        "Four heads subtract 1/4, 1/16, 1/64 and 1/256 of the distance.",
        alibi="""
            slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None]
            at = torch.arange(6)
            distance = at[:, None] - at
            bias = (-slopes * distance).masked_fill(distance < 0, float("-inf"))
            x = torch.randn(2, 6, 32)
            q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x), expected)
        """,
    ),
    _test(
        "eval-is-repeatable",
        "In eval mode the same input gives the same output, whatever the dropout.",
        head="""
            head = CausalHead(32, 16, max_len=64, dropout=0.5).eval()
            x = torch.randn(2, 6, 32)
            assert torch.equal(head(x), head(x))
        """,
        layer="""
            layer = CausalAttention(32, 4, max_len=64, dropout=0.5).eval()
            x = torch.randn(2, 6, 32)
            assert torch.equal(layer(x)[0], layer(x)[0])
        """,
    ),
    _test(
        "dropout-drops-whole-tokens",
        "The first token has one weight, 1. Dropout of 0.5 makes it 0 or 2, for all channels together.",
        head="""
            head = CausalHead(32, 16, max_len=64, dropout=0.5).train()
            x = torch.randn(200, 6, 32)
            factors = head(x)[:, 0] / head.value(x)[:, 0]  # (200, 16)
            dropped = factors.mean(dim=-1) < 1
            torch.testing.assert_close(factors[dropped], torch.zeros_like(factors[dropped]))
            torch.testing.assert_close(factors[~dropped], torch.full_like(factors[~dropped], 2.0))
            assert 0 < dropped.sum() < 200
        """,
    ),
    _test(
        "dropout-has-its-rate",
        "With a rate of 0.2 a fifth of the first token's weights is dropped, and the others are 1/0.8.",
        head="""
            head = CausalHead(32, 16, max_len=64, dropout=0.2).train()
            x = torch.randn(500, 6, 32)
            factors = (head(x)[:, 0] / head.value(x)[:, 0]).mean(dim=-1)  # (500,)
            kept = factors[factors > 0.1]
            torch.testing.assert_close(kept, torch.full_like(kept, 1.25))
            assert 300 < len(kept) < 500
        """,
    ),
    _test(
        "everything-moves-with-the-module",
        "After .to(device) nothing is left behind; the meta device shows it without a GPU.",
        head="""
            head.to("meta")
            assert head(torch.empty(2, 6, 32, device="meta")).device.type == "meta"
        """,
        layer="""
            layer.to("meta")
            assert layer(torch.empty(2, 6, 32, device="meta"))[0].device.type == "meta"
        """,
    ),
    _test(
        "saved-weights-are-all-weights",
        "A second module with the first one's state_dict gives the same output.",
        head="""
            copy = CausalHead(32, 16, max_len=64).eval()
            head = CausalHead(32, 16, max_len=64).eval()
            copy.load_state_dict(head.state_dict())
            x = torch.randn(2, 6, 32)
            assert torch.equal(copy(x), head(x))
        """,
    ),
    _test(
        "weights-load-at-another-length",
        "Weights trained at one maximum length load at another.",
        head="""
            longer = CausalHead(32, 16, max_len=128)
            longer.load_state_dict(CausalHead(32, 16, max_len=64).state_dict())
        """,
        layer="""
            longer = CausalAttention(32, 4, max_len=128)
            longer.load_state_dict(CausalAttention(32, 4, max_len=64).state_dict())
        """,
    ),
    _test(
        "a-text-too-long-is-refused-in-words",
        "A text over the maximum length is refused by an error that says so.",
        head="""
            with pytest.raises(ValueError, match="at most 64"):
                head(torch.randn(2, 65, 32))
        """,
        layer="""
            with pytest.raises(ValueError, match="at most 64"):
                layer(torch.randn(2, 65, 32))
        """,
    ),
    _test(
        "lse-is-natural",
        "The log-sum-exp is that of the scaled scores, in base e.",
        function="""
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            _, lse = attention(q, k, v)
            torch.testing.assert_close(lse, torch.logsumexp(q @ k.mT / 16**0.5, dim=-1))
        """,
    ),
    _test(
        "sinks-take-their-share", "With all scores 0, S keys share S / (S + exp(sink)) of a head's attention."
    ),
    _test(
        "pages-do-not-matter",
        "Keys in pages give the same output as the same keys in a row, with every option.",
    ),
    _test("unwritten-slots-do-not-matter", "What stands in slots that are not written yet does not matter."),
    _test(
        "a-packed-sequence-is-like-one-alone",
        "A packed sequence gives the same output as the sequence alone.",
    ),
    _test("the-number-of-splits-does-not-matter", "Keys in two parts give the same output as keys in one."),
    _test("hidden-keys-do-not-matter", "What stands in keys that the mask hides does not matter."),
    _test("ranks-agree-with-one-process", "Each rank has its part of the output of one process."),
)
PROPERTY_TESTS: dict[str, PropertyTest] = {test.name: test for test in _TESTS}


def code_of_test(mistake: Mistake, kind: str) -> str:
    """Return the test that finds a mistake, for the template `kind`."""
    return PROPERTY_TESTS[mistake.test].codes[kind]


def kinds_with_a_test(mistake: Mistake) -> tuple[str, ...]:
    """Return the templates with the mistake planted for which its test has a version."""
    return tuple(kind for kind in mistake.plants if kind in PROPERTY_TESTS[mistake.test].codes)
