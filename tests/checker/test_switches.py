"""What a check tries of a class beyond its defaults: switches, long texts, and a model's own depth."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard import check
from tests.checker.corpus import right, undecided, wrong
from tests.checker.language_models import Block, LanguageModel
from tests.checker.layers import FusedHeads
from tests.sampling import share

WIDE = 96  # tokens in a block
STRIDE = 200


def causal_scores(q, k, offset=1):
    T = q.shape[-2]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(offset)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -torch.inf)


class TwoPaths(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, sdpa: bool = True):
        super().__init__(d_model, num_heads)
        self.sdpa = sdpa

    def attend(self, q, k, v):
        if self.sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.slow(q, k, v)

    def slow(self, q, k, v):
        return causal_scores(q, k).softmax(-1) @ v


class TwoPathsNoScale(TwoPaths):
    def slow(self, q, k, v):
        return (causal_scores(q, k) * math.sqrt(q.shape[-1])).softmax(-1) @ v


class MaskOption(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, causal: bool = False):
        super().__init__(d_model, num_heads)
        self.causal = causal

    diagonal = 1

    def attend(self, q, k, v):
        scores = causal_scores(q, k, self.diagonal) if self.causal else q @ k.mT / math.sqrt(q.shape[-1])
        return scores.softmax(-1) @ v


class MaskOptionAhead(MaskOption):
    diagonal = 2


class SoftcapOption(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, softcap: float | None = None):
        super().__init__(d_model, num_heads)
        self.softcap = softcap

    def attend(self, q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (scores if self.softcap is None else self.cap(scores, self.softcap)).softmax(-1) @ v

    def cap(self, scores, cap):
        return cap * torch.tanh(scores / cap)


class SoftcapOptionNotMultiplied(SoftcapOption):
    def cap(self, scores, cap):
        return torch.tanh(scores / cap)


class ExcludeSelf(FusedHeads):
    """A switch whose meaning is itself a mistake elsewhere."""

    def __init__(self, d_model: int, num_heads: int, exclude_self: bool = False):
        super().__init__(d_model, num_heads)
        self.exclude_self = exclude_self

    def attend(self, q, k, v):
        scores = causal_scores(q, k)
        if self.exclude_self:
            hidden = torch.eye(q.shape[-2], dtype=torch.bool)
            hidden[0] = False
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v


class LinearOption(FusedHeads):
    """A switch that makes it another kind of attention."""

    def __init__(self, d_model: int, num_heads: int, linear: bool = False):
        super().__init__(d_model, num_heads)
        self.linear = linear

    def attend(self, q, k, v):
        if not self.linear:
            return F.scaled_dot_product_attention(q, k, v)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


class CausalHeads(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, look_both_ways: bool = False):
        super().__init__(d_model, num_heads)
        self.look_both_ways = look_both_ways

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=not self.look_both_ways)


class ByBlocks(FusedHeads):
    """Keys in blocks of a constant of this file, merged by their lse."""

    def attend(self, q, k, v):
        outputs, sums = [], []
        for kb, vb in zip(k.split(WIDE, -2), v.split(WIDE, -2), strict=True):
            scores = q @ kb.mT / math.sqrt(q.shape[-1])
            outputs.append(scores.softmax(-1) @ vb)
            sums.append(scores.logsumexp(-1))
        return self.join(torch.stack(outputs), torch.stack(sums))

    def join(self, outputs, sums):
        return (sums.softmax(0)[..., None] * outputs).sum(0)


class ByBlocksAveraged(ByBlocks):
    def join(self, outputs, sums):
        return outputs.mean(0)


class WithoutTheRest(FusedHeads):
    """The keys behind the last whole block are forgotten."""

    def attend(self, q, k, v):
        n = max(1, k.shape[-2] // WIDE) * WIDE
        return F.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :])


class ShortMask(FusedHeads):
    """Causal, by a mask that hides no more than 90 tokens ahead."""

    def __init__(self, d_model: int, num_heads: int, max_len: int = 512):
        super().__init__(d_model, num_heads)
        ones = torch.ones(max_len, max_len, dtype=torch.bool)
        self.register_buffer("hidden", ones.triu(1) & ~ones.triu(91), persistent=False)
        self.causal = True

    def attend(self, q, k, v):
        T = q.shape[-2]
        return F.scaled_dot_product_attention(q, k, v, ~self.hidden[:T, :T])


def in_strides(rescaling):
    """Return attention to keys in strides with a running maximum, and what is done for a new one."""

    def attend(q, k, v):
        total, output = q.new_zeros(*q.shape[:-1], 1), torch.zeros_like(q)
        highest = torch.full_like(total, -torch.inf)
        for start in range(0, k.shape[-2], STRIDE):
            scores = q @ k[..., start : start + STRIDE, :].mT / math.sqrt(q.shape[-1])
            new = torch.maximum(highest, scores.amax(-1, keepdim=True))
            factor, parts = rescaling(highest - new), (scores - new).exp()
            total = total * factor + parts.sum(-1, keepdim=True)
            output = output * factor + parts @ v[..., start : start + STRIDE, :]
            highest = new
        return output / total

    return attend


strided, strided_not_rescaled = in_strides(torch.exp), in_strides(torch.ones_like)


class TinyGPT(LanguageModel):
    odd, factor = -1, 2.0  # the layer whose scores are multiplied by this factor

    def __init__(self, vocab_size: int = 65, n_embd: int = 48, n_head: int = 4, n_layer: int = 3):
        self.blocks = (Block,) * n_layer
        super().__init__(vocab_size, n_embd, n_head, block_size=512)
        if 0 <= self.odd < n_layer:
            self.h[self.odd].attn.factor = self.factor


class TinyGPTWithAnOddLayer(TinyGPT):
    odd = 2


class TinyGPTWithAnUnscaledLayer(TinyGPT):
    """Its norm stands before the projections, and is none of queries and keys, which would need no scale."""

    odd, factor = 2, 12**0.5


class DeepGPT(TinyGPT):
    def __init__(self, vocab_size: int = 65, n_embd: int = 48, n_head: int = 4, n_layer: int = 24):
        super().__init__(vocab_size, n_embd, n_head, n_layer)


class GPTOfAnyDepth(TinyGPT):
    def __init__(self, n_layer: int):
        super().__init__(n_layer=n_layer)


@pytest.mark.at_length("test_the_report")
@pytest.mark.parametrize(
    ("model", "mistake"),
    share([(TinyGPTWithAnUnscaledLayer, "no-scale"), (TinyGPTWithAnOddLayer, "constant-scale")], 2),
)
def test_a_mistake_in_a_later_layer_is_found_and_only_that_layer_called_wrong(model, mistake):
    report = check(model)
    assert report.diagnoses[0].name == report.layers[2].mistake == mistake
    assert [layer.verdict for layer in report.layers] == ["right", "right", "wrong"]


def added_one_by_one(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total, output = torch.zeros_like(weights[..., :1]), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for j in range(k.shape[-2]):
        total = total + weights[..., j : j + 1]
        output = output + weights[..., j : j + 1] * v[..., j : j + 1, :]
    return output / total


def head_by_head(q, k, v):
    heads = []
    for head in range(q.shape[1]):
        heads.append(F.scaled_dot_product_attention(q[:, head], k[:, head], v[:, head]))
    return torch.stack(heads, 1)


class TwoSwitches(FusedHeads):
    """Right with either switch turned; with both, the mask shows one token of the future."""

    def __init__(self, dim: int, num_heads: int, causal: bool = False, use_flash: bool = True):
        super().__init__(dim, num_heads)
        self.causal, self.use_flash = causal, use_flash

    def attend(self, q, k, v):
        if self.use_flash:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(2) > 0, -torch.inf)
        return scores.softmax(-1) @ v


class RoundedPositions(FusedHeads):
    """Rotary tables whose positions are bfloat16: from the 257th on, two in a row are one."""

    def __init__(self, dim: int, num_heads: int, max_len: int = 2048):
        super().__init__(dim, num_heads)
        width = dim // num_heads
        positions = torch.arange(max_len).to(torch.bfloat16).float()
        angles = positions[:, None] * 10000 ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x):
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)


class Layers(FusedHeads):
    """Every second layer sees three tokens only, as those of Gemma do."""

    def __init__(self, d_model, num_heads, layer_idx=0):
        super().__init__(d_model, num_heads)
        self.is_local = layer_idx % 2 == 1

    def attend(self, q, k, v):
        hidden = causal_scores(q, k).isinf()
        return F.scaled_dot_product_attention(
            q, k, v, ~(hidden | self.far(hidden)) if self.is_local else ~hidden
        )

    def far(self, hidden):
        return ~torch.ones_like(hidden).triu(-2)


class LayersToBothSides(Layers):
    """Every second layer sees the future."""

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=not self.is_local)


class LayersWithAHole(Layers):
    """Every second layer hides the query's own key, where there is another one."""

    def far(self, hidden):
        own = torch.eye(hidden.shape[-1], dtype=torch.bool)
        own[0] = False
        return own


class ScaledByLayer(Layers):
    """As GPT-2 with `scale_attn_by_inverse_layer_idx`, which no check can tell from a mistake."""

    def __init__(self, d_model, num_heads, layer_idx=0):
        super().__init__(d_model, num_heads)
        self.factor = 1 / (layer_idx + 1)

    def attend(self, q, k, v):
        return (causal_scores(q, k) * self.factor).softmax(-1) @ v


class LayerTypes(Layers):
    def __init__(self, d_model, num_heads, layer_type="full_attention"):
        super().__init__(d_model, num_heads)
        self.is_local = layer_type == "sliding_attention"


class LayerTypesToBothSides(LayerTypes):
    """The window of the sliding layers reaches as far ahead as back."""

    def attend(self, q, k, v):
        at = torch.arange(q.shape[-2])
        distance = at[:, None] - at
        return F.scaled_dot_product_attention(q, k, v, distance.abs() < 3 if self.is_local else distance >= 0)


class AttentionTypes(FusedHeads):
    """Of two kinds, of which one sees every token: by another name than a layer's, it may."""

    def __init__(self, d_model, num_heads, attn_type="causal"):
        super().__init__(d_model, num_heads)
        self.attn_type = attn_type

    def attend(self, q, k, v):
        if self.attn_type in ("full", "bidirectional"):
            return F.scaled_dot_product_attention(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Kernels(FusedHeads):
    """The values of its argument are those of a library that it does not name."""

    kernels = dict.fromkeys(("auto", "fast"), F.scaled_dot_product_attention)

    def __init__(self, d_model, num_heads, attn_backend="auto", act="gelu", init_std=0.02):
        super().__init__(d_model, num_heads)
        self.attend = self.kernels[attn_backend]


class HeadWidth(FusedHeads):
    def __init__(self, d_model, num_heads, head_dim=None):
        super().__init__(d_model, num_heads)
        width = head_dim or d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * num_heads * width)
        self.proj = nn.Linear(num_heads * width, d_model)
        self.scale = self.scale_of(d_model // num_heads, width)

    def scale_of(self, share, width):
        return width**-0.5

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)


class ScaledByTheShare(HeadWidth):
    """Its scale is that of heads which share the width of the model, whatever their width is."""

    def scale_of(self, share, width):
        return share**-0.5


EVERYTHING_TRIED = "is right: "


@pytest.mark.parametrize(
    "entry",
    [
        # A switch whose other side is right leaves the headline; a mistake behind one is named with it.
        *share(
            [
                right(TwoPaths, EVERYTHING_TRIED, "passed option sdpa"),
                right(MaskOption, EVERYTHING_TRIED, "passed option causal"),
                right(SoftcapOption, EVERYTHING_TRIED, "passed option softcap"),
            ],
            3,
        ),
        *share(
            [
                wrong(TwoPathsNoScale, why="with sdpa=False", says=["named no-scale"]),
                wrong(MaskOptionAhead, why="with causal=True", says=["named one-token-ahead"]),
                wrong(
                    SoftcapOptionNotMultiplied, why="with softcap=2.0", says=["named softcap-not-multiplied"]
                ),
            ],
            3,
        ),
        # A switch of unknown meaning is not tried, and none is called wrong that opens a causal class.
        *share(
            [
                right(ExcludeSelf, "as far as tried: no option exclude_self ("),
                right(LinearOption, "as far as tried: no option linear ("),
            ],
            2,
        ),
        right(CausalHeads),
        # Another layer of a model, another kind of layer, and heads that do not share the model's width.
        *share(
            [
                right(Layers, EVERYTHING_TRIED, "passed option layer_idx"),
                right(LayerTypes, EVERYTHING_TRIED, "passed option layer_type"),
                right(HeadWidth, EVERYTHING_TRIED, "passed option head_dim"),
                right(AttentionTypes, EVERYTHING_TRIED, "passed option attn_type"),
            ],
            2,
        ),
        right(ScaledByLayer, "as far as tried: no option layer_idx ("),
        right(Kernels, "as far as tried: no option attn_backend ("),
        wrong(LayersToBothSides, "no-mask", failed=("option layer_idx",)),
        *share(
            [
                wrong(LayersWithAHole, "missing-diagonal", failed=("option layer_idx",)),
                wrong(LayerTypesToBothSides, why="with layer_type=sliding_attention, causality"),
                wrong(ScaledByTheShare, "constant-scale", why="with head_dim=24"),
            ],
            2,
        ),
        wrong(TwoSwitches, "one-token-ahead", failed=("options together",)),
        right(MaskOptionAhead, EVERYTHING_TRIED, init={"causal": False}),
        # Large blocks are right or wrong on a long text.
        right(ByBlocks, "passed long text"),
        right(strided, "passed long text"),
        wrong(ByBlocksAveraged, named=("merge-without-lse",)),
        wrong(strided_not_rescaled, named=("block-not-rescaled",)),
        wrong(WithoutTheRest, why="does not see its own key"),
        wrong(ShortMask, why="output 0 depends on token 91"),
        # Sums over many keys, and rotary positions, in bfloat16.
        wrong(added_one_by_one, failed=("bfloat16, many keys",), named=("precision-lost",)),
        right(head_by_head, "passed bfloat16, many keys"),
        undecided(RoundedPositions, "with 300 tokens it differs"),
        # The headline says how many layers were built, unless the caller said how many.
        right(TinyGPT, EVERYTHING_TRIED, *(f"h.{i}" for i in range(3))),
        *share(
            [
                right(DeepGPT, "no more than 2 of 24 layers"),
                right(GPTOfAnyDepth, "no more than 2 layers"),
            ],
            2,
        ),
        pytest.param(
            right(GPTOfAnyDepth, EVERYTHING_TRIED, init={"n_layer": 1}),
            marks=pytest.mark.at_length("test_the_report"),
        ),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
