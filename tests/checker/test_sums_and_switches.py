"""Sums over many keys in bfloat16, rotary positions in bfloat16, and two switches that are wrong together."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.checker.corpus import right, undecided, wrong
from tests.checker.layers import FusedHeads


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


@pytest.mark.parametrize(
    "entry",
    [
        wrong(added_one_by_one, failed=("bfloat16, many keys",), named=("precision-lost",)),
        right(head_by_head, "passed bfloat16, many keys"),
        wrong(TwoSwitches, "one-token-ahead", failed=("options together",)),
        undecided(RoundedPositions, "with 300 tokens it differs"),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
