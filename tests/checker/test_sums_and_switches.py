"""Sums over many keys in bfloat16, rotary positions in bfloat16, and two switches that are wrong together."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checker import check


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


def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = []
    for i in range(q.shape[-2]):
        end = i + k.shape[-2] - q.shape[-2] + 1
        near = slice(max(0, end - 300), end)
        scores = q[..., i : i + 1, :] @ k[..., near, :].mT / math.sqrt(q.shape[-1])
        rows.append(scores.softmax(-1) @ v[..., near, :])
    return torch.cat(rows, -2)


def test_a_sum_in_bfloat16_loses_precision_on_many_keys() -> None:
    report = check(added_one_by_one)
    assert [d.name for d in report.diagnoses] == ["precision-lost"]
    assert [c.name for c in report.failures] == ["bfloat16, many keys"]


def test_a_loop_that_adds_nothing_up_is_right() -> None:
    report = check(head_by_head)
    assert report.verdict == "right"
    assert "bfloat16, many keys" in [c.name for c in report.passed]


@pytest.mark.at_length("test_a_loop_that_adds_nothing_up_is_right")
def test_a_window_that_shows_on_many_keys_is_no_lost_precision() -> None:
    assert check(local).verdict == "undecided"


class TwoSwitches(nn.Module):
    """Right with either switch turned; with both, the mask shows one token of the future."""

    def __init__(self, dim: int, num_heads: int, causal: bool = False, use_flash: bool = True) -> None:
        super().__init__()
        self.num_heads, self.causal, self.use_flash = num_heads, causal, use_flash
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if self.use_flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            if self.causal:
                scores = scores.masked_fill(torch.ones(T, T).triu(2) > 0, -torch.inf)
            y = scores.softmax(-1) @ v
        out: Tensor = self.proj(y.transpose(1, 2).reshape(B, T, C))
        return out


def test_switches_that_are_wrong_together_only_are_named() -> None:
    report = check(TwoSwitches)
    assert report.diagnoses[0].name == "one-token-ahead"
    assert [c.name for c in report.failures] == ["options together"]


class RoundedPositions(nn.Module):
    """Rotary tables whose positions are bfloat16: from the 257th on, two in a row are one."""

    def __init__(self, dim: int, num_heads: int, max_len: int = 2048) -> None:
        super().__init__()
        self.num_heads = num_heads
        width = dim // num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        positions = torch.arange(max_len).to(torch.bfloat16).float()
        angles = positions[:, None] * 10000 ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(B, T, C))
        return out


def test_rotary_positions_in_bfloat16_are_not_right() -> None:
    report = check(RoundedPositions)
    assert report.verdict == "undecided"
    assert "with 300 tokens it differs" in report.undecided
