"""Sums over many keys in bfloat16, rotary positions in bfloat16, and two switches that are wrong together."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.checker import check
from tests.checker.layers import FusedHeads


def added_one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total, output = torch.zeros_like(weights[..., :1]), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for j in range(k.shape[-2]):
        total = total + weights[..., j : j + 1]
        output = output + weights[..., j : j + 1] * v[..., j : j + 1, :]
    return output / total


def head_by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = []
    for head in range(q.shape[1]):
        heads.append(F.scaled_dot_product_attention(q[:, head], k[:, head], v[:, head]))
    return torch.stack(heads, 1)


def test_a_sum_in_bfloat16_loses_precision_on_many_keys() -> None:
    report = check(added_one_by_one)
    assert [d.name for d in report.diagnoses] == ["precision-lost"]
    assert [c.name for c in report.failures] == ["bfloat16, many keys"]


def test_a_loop_that_adds_nothing_up_is_right() -> None:
    report = check(head_by_head)
    assert report.verdict == "right"
    assert "bfloat16, many keys" in [c.name for c in report.passed]


class TwoSwitches(FusedHeads):
    """Right with either switch turned; with both, the mask shows one token of the future."""

    def __init__(self, dim: int, num_heads: int, causal: bool = False, use_flash: bool = True) -> None:
        super().__init__(dim, num_heads)
        self.causal, self.use_flash = causal, use_flash

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.use_flash:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(2) > 0, -torch.inf)
        return scores.softmax(-1) @ v


def test_switches_that_are_wrong_together_only_are_named() -> None:
    report = check(TwoSwitches)
    assert report.diagnoses[0].name == "one-token-ahead"
    assert [c.name for c in report.failures] == ["options together"]


class RoundedPositions(FusedHeads):
    """Rotary tables whose positions are bfloat16: from the 257th on, two in a row are one."""

    def __init__(self, dim: int, num_heads: int, max_len: int = 2048) -> None:
        super().__init__(dim, num_heads)
        width = dim // num_heads
        positions = torch.arange(max_len).to(torch.bfloat16).float()
        angles = positions[:, None] * 10000 ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)


def test_rotary_positions_in_bfloat16_are_not_right() -> None:
    report = check(RoundedPositions)
    assert report.verdict == "undecided"
    assert "with 300 tokens it differs" in report.undecided
