"""Attention that leaves its inputs and later calls alone, and attention that does not."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from tests.checker.corpus import Entry
from tests.checker.layers import FusedHeads


def attend(q, k, v, visible):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


def lower(q, k):
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()


# What a call writes


def own_tensors_overwritten(q, k, v, mask=None):
    scores = q @ k.mT
    scores *= q.shape[-1] ** -0.5
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    return scores.softmax(-1) @ v


def array_scaled_in_place(q, k, v):
    q /= np.sqrt(q.shape[-1])
    scores = q @ np.swapaxes(k, -1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def values_of_hidden_keys_zeroed(q, k, v, mask=None):
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v)
    v[..., ~mask.any(-2), :] = 0.0
    k -= k.mean(-2, keepdim=True)  # softmax does not see it
    return attend(q, k, v, mask)


def mask_inverted_in_place(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not_(), -torch.inf)
    return scores.softmax(-1) @ v


def scores_added_to_the_mask(q, k, v, attn_mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            raise TypeError("attn_mask: expected numbers to add")
        attn_mask += scores[:1, :1].squeeze() * 0.0 + 1.0  # softmax does not see a constant
        scores = scores + attn_mask
    return scores.softmax(-1) @ v


class Layer(FusedHeads):
    """Causal attention, right, whose parts are replaced below."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.kept, self.count = None, 0

    def visible(self, q, k):
        return lower(q, k)

    def attend(self, q, k, v):
        return attend(q, k, v, self.visible(q, k))


class InputCentred(Layer):
    """It writes into x, and puts nothing back."""

    def forward(self, x):
        out = super().forward(x)
        x -= x.mean(-1, keepdim=True)
        return out


# What a call keeps


class MaskThatGrows(Layer):
    def visible(self, q, k):
        T = q.shape[-2]
        if self.kept is None or len(self.kept) < T:
            self.kept = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
        return self.kept[:T, :T]


class WeightsForAPicture(Layer):
    def visible(self, q, k):
        self.kept, self.count = (q @ k.mT).softmax(-1), self.count + 1
        return super().visible(q, k)


class OpenFromTheThirdCall(Layer):
    def visible(self, q, k):
        self.count += 1
        return super().visible(q, k).logical_or(torch.tensor(self.count > 2))


class KeysOfEarlierCalls(Layer):
    def attend(self, q, k, v):
        if self.kept is not None and len(self.kept[0]) == len(k):
            k, v = torch.cat([self.kept[0], k], 2), torch.cat([self.kept[1], v], 2)
        self.kept = k.detach(), v.detach()
        T, S = q.shape[2], k.shape[2]
        return attend(q, k, v, torch.ones(T, S, dtype=torch.bool).tril(S - T))


BY_LENGTH, FIRST = {}, []


def mask_by_length(q, k, v):
    size = q.shape[-2], k.shape[-2]
    if size not in BY_LENGTH:
        BY_LENGTH[size] = lower(q, k)
    return attend(q, k, v, BY_LENGTH[size])


@lru_cache
def memoised(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril()


def memoised_mask(q, k, v):
    return attend(q, k, v, memoised(q.shape[-2], k.shape[-2]))


def scale_of_the_first_call(q, k, v, memo=FIRST):
    if not memo:
        memo.append(q.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5 * memo[0] / q.shape[-2])


def counted():
    calls = 0

    def attention(q, k, v):
        nonlocal calls
        calls += 1
        return F.scaled_dot_product_attention(q, k, v) * (1.0 if calls % 3 else 2.0)

    return attention


def overwritten(name, thing, **options):
    return Entry(name, thing, options, "wrong", ("input-overwritten",))


def stateful(name, thing):
    return Entry(name, thing, verdict="wrong", mistakes=("state-between-calls",))


ENTRIES = [
    Entry("own tensors overwritten", own_tensors_overwritten),
    Entry("a mask that grows", MaskThatGrows),
    Entry("weights kept for a picture", WeightsForAPicture),
    Entry("masks by their lengths", mask_by_length),
    Entry("a memoised mask", memoised_mask),
    overwritten("an array scaled in place", array_scaled_in_place),
    overwritten("hidden values zeroed", values_of_hidden_keys_zeroed),
    overwritten("a mask inverted in place", mask_inverted_in_place),
    overwritten("numbers added to the mask", scores_added_to_the_mask),
    overwritten("the input of a layer", InputCentred),
    stateful("open from the third call on", OpenFromTheThirdCall),
    stateful("keys of earlier calls", KeysOfEarlierCalls),
    stateful("the scale of the first call", scale_of_the_first_call),
    stateful("a counter", counted()),
]
