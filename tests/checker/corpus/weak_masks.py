"""Masks that hide with a finite number: low enough for any score, or for small scores only."""

import torch

from tests.checker.corpus import Entry
from tests.checker.layers import FusedHeads


def filled(value):
    def attention(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, value)
        return scores.softmax(-1) @ v

    return attention


def added(value):
    def attention(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + (1.0 - mask.to(scores)) * value
        return scores.softmax(-1) @ v

    return attention


def padded(q, k, v, key_padding_mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], -100.0)
    return scores.softmax(-1) @ v


class Layer(FusedHeads):
    """Attention whose mask is an argument of its forward pass."""

    value = -torch.inf

    def forward(self, x, mask=None):
        return self.merge(filled(self.value)(*self.split(x), mask))


class WeakLayer(Layer):
    value = -100.0


class TokenLayer(WeakLayer):
    """Its mask is one of tokens, (B, S)."""

    def forward(self, x, attention_mask=None):
        return super().forward(x, None if attention_mask is None else attention_mask[:, None, None].bool())


def weak(name, thing):
    return Entry(name, thing, verdict="wrong", mistakes=("weak-mask-value",))


ENTRIES = [
    Entry("filled with -inf", Layer),
    Entry("filled with -1e9", filled(-1e9)),
    Entry("added as -1e4", added(-1e4)),
    weak("filled with -100", filled(-100.0)),
    weak("filled with -50", filled(-50.0)),
    weak("filled with -73", filled(-73.0)),
    weak("added as -100", added(-100.0)),
    weak("padding filled with -100", padded),
    weak("filled with -100 in a layer", WeakLayer),
    weak("of tokens, filled with -100", TokenLayer),
]
