"""Attention that is right on short inputs, or in eval mode, and wrong elsewhere."""

import torch
from torch import nn

from tests.checker.corpus import Entry


class Base(nn.Module):
    """Causal attention, right, whose parts are replaced below."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

    def mask(self, scores):
        T, S = scores.shape[-2:]
        return scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -torch.inf)

    def merge(self, q, k, v):
        mixed = self.mask(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.merge(*self.split(x))


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
        out = self.merge(q, k, v)
        return (out, (k[:, :, -self.kept :], v[:, :, -self.kept :])) if use_cache else out


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
    Entry("the mask of short texts", mask_of_short_texts, verdict="wrong"),
]
