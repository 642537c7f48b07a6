"""Attention that is right on short inputs, or in eval mode, and wrong elsewhere."""

import torch

from tests.checker.corpus import Entry
from tests.checker.layers import FusedHeads


class Base(FusedHeads):
    """Causal attention, right, whose parts are replaced below."""

    def mask(self, scores):
        T, S = scores.shape[-2:]
        return scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -torch.inf)

    def attend(self, q, k, v):
        return self.mask(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class ScaledFromNineTokens(Base):
    """Causal; from nine tokens on the scores are divided once more."""

    def mask(self, scores):
        return super().mask(scores / (3.46 if scores.shape[-1] > 8 else 1.0))


class OpenInTraining(Base):
    """Causal, but only in eval mode."""

    def mask(self, scores):
        return scores if self.training else super().mask(scores)


class ShortMemory(Base):
    """Causal, with a cache that keeps the latest keys only."""

    kept = 24

    def forward(self, x, past=None, use_cache=False):
        q, k, v = self.split(x)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        out = self.merge(self.attend(q, k, v))
        return (out, (k[:, :, -self.kept :], v[:, :, -self.kept :])) if use_cache else out


class RoundedAngles(Base):
    """Causal, with rotary positions whose angles are rounded: bfloat16 has few whole numbers above 256."""

    def frequencies(self, q):
        half = q.shape[-1] // 2
        return (10000.0 ** (-torch.arange(half) / half)).to(q.dtype)

    def attend(self, q, k, v):
        frequencies, half = self.frequencies(q), q.shape[-1] // 2
        angles = torch.arange(q.shape[-2]).to(frequencies.dtype)[:, None] * frequencies
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        q, k = (x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin for x in (q, k))
        return super().attend(q, k, v)


class RoundedBuffer(RoundedAngles):
    """The same, in the dtype of a buffer, which only a cast of the whole module rounds."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        half = d_model // num_heads // 2
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(half) / half), persistent=False)

    def frequencies(self, q):
        return self.inv_freq


class PaddingOfTheFirstCall(Base):
    """Keeps the padding of the first call for later inputs of the same shape."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.visible = {}

    def forward(self, x, key_padding_mask=None):
        if key_padding_mask is None:
            return super().forward(x)
        visible = self.visible.setdefault(x.shape, ~key_padding_mask[:, None, None])
        q, k, v = self.split(x)
        scores = self.mask(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        return self.merge(scores.softmax(-1) @ v)


class HidesScoresOfZero(Base):
    """Causal; what `tril` left is told by its zeros, which a token of zeros has, too."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.qkv = torch.nn.Linear(d_model, 3 * d_model, bias=False)

    def mask(self, scores):
        scores = scores.tril()
        return scores.masked_fill(scores == 0, -torch.inf)


def scale_of_narrow_heads(q, k, v):
    return (q @ k.mT / min(q.shape[-1], 64) ** 0.5).softmax(-1) @ v


def mask_of_short_texts(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None and q.shape[-2] <= 16:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


ENTRIES = [
    Entry("all is right", Base),
    Entry("open in training", OpenInTraining, verdict="wrong"),
    Entry("scaled from nine tokens on", ScaledFromNineTokens, verdict="wrong"),
    Entry("a cache of 24 tokens", ShortMemory, verdict="wrong"),
    Entry(
        "rounded angles",
        RoundedAngles,
        verdict="wrong",
        mistakes=("precision-lost",),
        why="bfloat16, long text",
    ),
    Entry("a rounded buffer", RoundedBuffer, says=("warned of precision-lost",)),
    Entry(
        "the padding of the first call",
        PaddingOfTheFirstCall,
        verdict="wrong",
        mistakes=("state-between-calls",),
        failed=("masked calls",),
    ),
    Entry("hides scores of zero", HidesScoresOfZero, verdict="wrong", failed=("zero token",)),
    Entry("the scale of narrow heads", scale_of_narrow_heads, verdict="wrong", failed=("wide heads",)),
    Entry("the mask of short texts", mask_of_short_texts, verdict="wrong"),
]
