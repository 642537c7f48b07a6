"""Which projection a parameter belongs to, by its name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.checker.subject.vocabulary import projection


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("query.proj.weight", "query"),
        ("key.0.fc.weight", "key"),
        ("q_proj.projection.weight", "query"),
        ("query_block.0.key.weight", "key"),
        ("attention.output.dense.weight", "out"),
        ("attn.proj.bias", "out"),
        ("to_out.0.weight", "out"),
        ("c_attn.weight", "qkv"),
        ("norm.weight", None),
    ],
)
def test_the_part_that_says_most_decides(path: str, role: str | None) -> None:
    assert projection(path) == role


class Projected(nn.Module):
    """A projection in a module of its own."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.proj(x)
        return found


class NestedNames(nn.Module):
    """Causal attention whose projections are all named `proj`, inside `query`, `key`, `value` and `out`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Projected(d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        found: Tensor = self.out(scores.softmax(-1) @ v)
        return found


def test_names_inside_of_names_are_understood() -> None:
    report = regard.check(NestedNames)
    assert report.verdict == "right", report
