"""What a check tries of a class beyond its defaults: switches, long texts, and a model's own depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import check
from tests.checker.layers import FusedHeads
from tests.sampling import share

WIDE = 96  # tokens in a block
STRIDE = 200


def names_of(report: Any) -> list[str]:
    return [d.name for d in report.diagnoses if not d.warning]


def untried(report: Any) -> str:
    return " ".join(c.name for c in report.untried)


def causal_scores(q: Tensor, k: Tensor, offset: int = 1) -> Tensor:
    T = q.shape[-2]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(offset)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -torch.inf)


class TwoPaths(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, sdpa: bool = True) -> None:
        super().__init__(d_model, num_heads)
        self.sdpa = sdpa

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.slow(q, k, v)

    def slow(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_scores(q, k).softmax(-1) @ v


class TwoPathsNoScale(TwoPaths):
    def slow(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (causal_scores(q, k) * math.sqrt(q.shape[-1])).softmax(-1) @ v


class MaskOption(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, causal: bool = False) -> None:
        super().__init__(d_model, num_heads)
        self.causal = causal

    diagonal = 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = causal_scores(q, k, self.diagonal) if self.causal else q @ k.mT / math.sqrt(q.shape[-1])
        return scores.softmax(-1) @ v


class MaskOptionAhead(MaskOption):
    diagonal = 2


class SoftcapOption(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, softcap: float | None = None) -> None:
        super().__init__(d_model, num_heads)
        self.softcap = softcap

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (scores if self.softcap is None else self.cap(scores, self.softcap)).softmax(-1) @ v

    def cap(self, scores: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(scores / cap)


class SoftcapOptionNotMultiplied(SoftcapOption):
    def cap(self, scores: Tensor, cap: float) -> Tensor:
        return torch.tanh(scores / cap)


class ExcludeSelf(FusedHeads):
    """A switch whose meaning is itself a mistake elsewhere."""

    def __init__(self, d_model: int, num_heads: int, exclude_self: bool = False) -> None:
        super().__init__(d_model, num_heads)
        self.exclude_self = exclude_self

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = causal_scores(q, k)
        if self.exclude_self:
            hidden = torch.eye(q.shape[-2], dtype=torch.bool)
            hidden[0] = False
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v


class LinearOption(FusedHeads):
    """A switch that makes it another kind of attention."""

    def __init__(self, d_model: int, num_heads: int, linear: bool = False) -> None:
        super().__init__(d_model, num_heads)
        self.linear = linear

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.linear:
            return F.scaled_dot_product_attention(q, k, v)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


class CausalHeads(FusedHeads):
    def __init__(self, d_model: int, num_heads: int, look_both_ways: bool = False) -> None:
        super().__init__(d_model, num_heads)
        self.look_both_ways = look_both_ways

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=not self.look_both_ways)


@pytest.mark.parametrize(
    ("cls", "option"), share([(TwoPaths, "sdpa"), (MaskOption, "causal"), (SoftcapOption, "softcap")], 3)
)
def test_a_switch_whose_other_side_is_right_leaves_the_headline(cls: type, option: str) -> None:
    report = check(cls)
    assert report.verdict == "right"
    assert f"option {option}" in [c.name for c in report.passed]
    assert untried(report) == ""


@pytest.mark.parametrize(
    ("cls", "mistake", "shown"),
    share(
        [
            (TwoPathsNoScale, "no-scale", "sdpa=False"),
            (MaskOptionAhead, "one-token-ahead", "causal=True"),
            (SoftcapOptionNotMultiplied, "softcap-not-multiplied", "softcap=2.0"),
        ],
        3,
    ),
)
def test_a_mistake_behind_a_switch_is_named_with_the_switch(cls: type, mistake: str, shown: str) -> None:
    report = check(cls)
    assert report.verdict == "wrong"
    assert mistake in names_of(report)
    assert f"with {shown}" in report.failures[0].detail


@pytest.mark.parametrize(
    ("cls", "option"),
    share([(ExcludeSelf, "exclude_self"), (LinearOption, "linear")], 2),
)
def test_a_switch_of_unknown_meaning_is_not_tried_and_never_wrong(cls: type, option: str) -> None:
    report = check(cls)
    assert report.verdict == "right"
    assert untried(report) == f"option {option}"


def test_a_switch_that_opens_a_causal_class_is_not_called_wrong() -> None:
    assert check(CausalHeads).verdict == "right"


def test_a_switch_that_the_caller_sets_is_not_turned() -> None:
    report = check(MaskOptionAhead, init={"causal": False})
    assert report.verdict == "right"
    assert untried(report) == ""


class ByBlocks(FusedHeads):
    """Keys in blocks of a constant of this file, merged by their lse."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs, sums = [], []
        for kb, vb in zip(k.split(WIDE, -2), v.split(WIDE, -2), strict=True):
            scores = q @ kb.mT / math.sqrt(q.shape[-1])
            outputs.append(scores.softmax(-1) @ vb)
            sums.append(scores.logsumexp(-1))
        return self.join(torch.stack(outputs), torch.stack(sums))

    def join(self, outputs: Tensor, sums: Tensor) -> Tensor:
        return (sums.softmax(0)[..., None] * outputs).sum(0)


class ByBlocksAveraged(ByBlocks):
    def join(self, outputs: Tensor, sums: Tensor) -> Tensor:
        return outputs.mean(0)


class WithoutTheRest(FusedHeads):
    """The keys behind the last whole block are forgotten."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = max(1, k.shape[-2] // WIDE) * WIDE
        return F.scaled_dot_product_attention(q, k[..., :n, :], v[..., :n, :])


class ShortMask(FusedHeads):
    """Causal, by a mask that hides no more than 90 tokens ahead."""

    def __init__(self, d_model: int, num_heads: int, max_len: int = 512) -> None:
        super().__init__(d_model, num_heads)
        ones = torch.ones(max_len, max_len, dtype=torch.bool)
        self.register_buffer("hidden", ones.triu(1) & ~ones.triu(91), persistent=False)
        self.causal = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[-2]
        return F.scaled_dot_product_attention(q, k, v, ~self.hidden[:T, :T])


def in_strides(rescaling: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return attention to keys in strides with a running maximum, and what is done for a new one."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
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


@pytest.mark.parametrize("attention", [ByBlocks, strided])
def test_right_code_in_large_blocks_is_right_on_a_long_text(attention: Any) -> None:
    report = check(attention)
    assert report.verdict == "right"
    assert "long text" in [c.name for c in report.passed]


@pytest.mark.parametrize(
    ("attention", "mistake"),
    [(ByBlocksAveraged, "merge-without-lse"), (strided_not_rescaled, "block-not-rescaled")],
)
def test_a_mistake_of_large_blocks_is_named(attention: Any, mistake: str) -> None:
    report = check(attention)
    assert report.verdict == "wrong"
    assert names_of(report) == [mistake]


def test_keys_behind_the_last_whole_block_are_missed() -> None:
    report = check(WithoutTheRest)
    assert report.verdict == "wrong"
    assert "does not see its own key" in report.failures[0].detail


def test_a_causal_mask_that_ends_is_wrong_on_a_long_text() -> None:
    report = check(ShortMask)
    assert report.verdict == "wrong"
    assert "output 0 depends on token 91" in report.failures[0].detail


class Layer(nn.Module):
    def __init__(self, n_embd: int, n_head: int, factor: float) -> None:
        super().__init__()
        self.norm, self.n_head, self.factor = nn.LayerNorm(n_embd), n_head, factor
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.c_attn(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in heads)
        y = (causal_scores(q, k) * self.factor).softmax(-1) @ v
        return x + self.c_proj(y.transpose(1, 2).flatten(2))


class TinyGPT(nn.Module):
    odd, factor = -1, 2.0  # the layer whose scores are multiplied by this factor

    def __init__(self, vocab_size: int = 65, n_embd: int = 48, n_head: int = 4, n_layer: int = 3) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        factors = (self.factor if i == self.odd else 1.0 for i in range(n_layer))
        self.h = nn.ModuleList(Layer(n_embd, n_head, factor) for factor in factors)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx)
        for layer in self.h:
            x = layer(x)
        return x @ self.wte.weight.T


class TinyGPTWithAnOddLayer(TinyGPT):
    odd = 2


class TinyGPTWithAnUnscaledLayer(TinyGPT):
    """Its norm stands before the projections, and is none of queries and keys, which would need no scale."""

    odd, factor = 2, 12**0.5


class DeepGPT(TinyGPT):
    def __init__(self, vocab_size: int = 65, n_embd: int = 48, n_head: int = 4, n_layer: int = 24) -> None:
        super().__init__(vocab_size, n_embd, n_head, n_layer)


class GPTOfAnyDepth(TinyGPT):
    def __init__(self, n_layer: int) -> None:
        super().__init__(n_layer=n_layer)


def test_a_model_is_built_with_its_own_depth() -> None:
    report = check(TinyGPT)
    assert report.verdict == "right"
    assert len(report.layers) == 3
    assert untried(report) == ""


@pytest.mark.at_length("test_a_model_is_built_with_its_own_depth")
@pytest.mark.parametrize(
    ("model", "mistake"),
    share([(TinyGPTWithAnUnscaledLayer, "no-scale"), (TinyGPTWithAnOddLayer, "constant-scale")], 2),
)
def test_a_mistake_in_a_later_layer_is_found_and_only_that_layer_called_wrong(
    model: type, mistake: str
) -> None:
    report = check(model)
    assert report.diagnoses[0].name == report.layers[2].mistake == mistake
    assert [layer.verdict for layer in report.layers] == ["right", "right", "wrong"]


@pytest.mark.parametrize(
    ("cls", "depth"), share([(DeepGPT, "2 of 24 layers"), (GPTOfAnyDepth, "2 layers")], 2)
)
def test_the_headline_says_how_many_layers_were_built(cls: type, depth: str) -> None:
    report = check(cls)
    assert report.verdict == "right"
    assert f"no more than {depth}" in report.summary


@pytest.mark.at_length("test_the_headline_says_how_many_layers_were_built")
def test_the_headline_does_not_say_it_where_the_caller_said_how_many() -> None:
    assert "layers" not in untried(check(GPTOfAnyDepth, init={"n_layer": 1}))
