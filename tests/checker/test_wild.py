"""Mistakes as people make them, in code of other styles than the templates'."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import check
from tests.sampling import share


class Compact(nn.Module):
    """A fused projection, and the requested mistake."""

    def __init__(self, n_embd=48, n_head=4, block_size=16, bug=""):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head, self.bug, self.p = n_head, bug, 0.1
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)), persistent=False)
        if bug == "scale kept as a tensor":
            self.scale = torch.sqrt(torch.FloatTensor([n_embd // n_head]))

    def forward(self, x):
        B, T, C = x.shape
        H, D, bug = self.n_head, C // self.n_head, self.bug
        parts = self.c_attn(x).chunk(3, -1)
        if bug == "view":
            q, k, v = (t.view(B, H, T, D) for t in parts)
        else:
            q, k, v = (t.view(B, T, H, D).transpose(1, 2) for t in parts)
        if bug == "fused dropout":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
        elif bug == "fused and scaled":
            mixed = F.scaled_dot_product_attention(q * D**-0.5, k, v, is_causal=True)
        else:
            mixed = self.weights(q, k, C) @ v
        mixed = mixed.reshape(B, T, C) if bug == "merge" else mixed.transpose(1, 2).reshape(B, T, C)
        return self.c_proj(mixed)

    def weights(self, q, k, C):
        bug, T, seen = self.bug, q.shape[2], self.tril[: q.shape[2], : q.shape[2]]
        scores = q @ k.transpose(-2, -1)
        if bug == "scale kept as a tensor":
            scores = scores / self.scale
        else:
            scores = scores / math.sqrt(C if bug == "model width" else q.shape[-1])
        plain = scores
        if bug == "triu":
            scores = scores + torch.triu(torch.full((T, T), float("-inf"), dtype=q.dtype))
        elif bug == "triu of −1e9":
            scores = scores.masked_fill(torch.ones(T, T).triu().bool(), -1e9)
        elif bug == "0 · inf":
            scores = scores + (1 - seen) * float("-inf")
        elif bug == "0 and 1":
            scores = scores + seen
        elif bug == "sign lost":
            scores = scores.masked_fill(seen == 0, 1e-9)
        elif bug in ("inverted", "inverted −1e9"):
            scores = scores.masked_fill(seen == 1, float("-inf") if bug == "inverted" else -1e9)
        else:
            scores = scores.masked_fill(seen == 0, float("-inf"))
        weights = F.softmax(scores, dim={"dim=2": 2, "dim=1": 1}.get(bug, -1))
        return F.softmax(plain, dim=-1) * seen if bug == "after" else weights


@pytest.mark.parametrize(
    ("bug", "name"),
    share(
        {
            "view": "heads-split-by-view",
            "merge": "heads-merged-by-view",
            "fused dropout": "dropout-in-eval",
            "fused and scaled": "scaled-twice",
            "scale kept as a tensor": "plain-attribute",
            "model width": "scale-from-model-width",
            "triu": "missing-diagonal",
            "triu of −1e9": "missing-diagonal",
            "0 · inf": "zero-times-infinity",
            "0 and 1": "mask-added-as-zero-one",
            "sign lost": "masked-with-zero",
            "inverted": "inverted-mask",
            "inverted −1e9": "inverted-mask",
            "dim=2": "softmax-over-queries",
            "dim=1": "softmax-over-heads",
            "after": "mask-after-softmax",
        }.items(),
        4,
    ),
)
def test_a_compact_module(bug, name):
    module = Compact(bug=bug)
    if bug != "fused dropout":
        del module.p  # a dropout that is not used would be a mistake of its own
    report = check(module)
    assert not report.ok
    assert report.diagnoses[0].name == name, str(report)


def off_by_one(q, k, v, window=4, is_causal=True):
    """A query sees the last `window` keys, itself included."""
    T, S = q.shape[-2], k.shape[-2]
    at, keys = torch.arange(T)[:, None] + S - T, torch.arange(S)
    mask = keys >= at - window
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask & (keys <= at) if is_causal else mask)


def tiled(q, k, v):
    times = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1))


def deaf_to_padding(q, k, v, key_padding_mask=None):
    return F.scaled_dot_product_attention(q, k, v)


def scales_its_mask(q, k, v, mask=None):
    scores = q @ k.mT
    return torch.softmax((scores if mask is None else scores + mask) / q.shape[-1] ** 0.5, -1) @ v


def counts_its_mask(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.softmax(scores if mask is None else scores + mask.float(), -1) @ v


def in_bits(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1) / math.log(2)


class OneForAll(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        y = self.linear(x)
        return torch.softmax(y @ y.mT / y.shape[-1] ** 0.5, -1) @ y


class WithoutAWord(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, x):
        T = x.shape[1]
        return self.attn(x, x, x, attn_mask=torch.ones(T, T).tril().bool())[0]


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (off_by_one, "window-off-by-one"),
        (tiled, "grouped-heads-tiled"),
        (deaf_to_padding, "padded-keys-leak"),
        (scales_its_mask, "mask-scaled-too"),
        (counts_its_mask, "mask-added-as-zero-one"),
        (in_bits, "lse-base-2"),
        (OneForAll, "one-projection"),
        (WithoutAWord, "inverted-mask"),
    ],
)
def test_functions_and_small_modules(thing, name):
    report = check(thing)
    assert not report.ok, str(report)
    assert report.diagnoses[0].name == name, str(report)


class TurnedInside(Compact):
    """Rotary positions computed inside forward, which no argument and no buffer shows."""

    def weights(self, q, k, C):
        T, D = q.shape[-2:]
        angles = torch.arange(T)[:, None] * 10000 ** (-torch.arange(0, D, 2) / D)
        angles = angles.to(q.dtype)

        def turned(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

        return super().weights(turned(q), turned(k), C)


def test_rotary_positions_are_recognised_by_their_numbers():
    module = TurnedInside()
    del module.p
    report = check(module)
    assert report.ok, str(report)
    assert any("rotary positions (base 10000" in line for line in report.assumptions)
