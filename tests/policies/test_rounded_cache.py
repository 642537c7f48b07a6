"""Rounded caches against rounding written out number by number, and whole matrices in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import regard
from regard.policies import round_cache
from regard.policies.rounded_cache import measure_rounding
from tests import truth
from tests.captures import captured


def dense(q: Tensor, k: Tensor, v: Tensor, options: dict) -> tuple[Tensor, Tensor]:
    T = q.shape[2]
    scores = q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~options["mask"].to_dense(T), -math.inf)
    if "sinks" in options:
        scores = torch.cat([scores, options["sinks"].to(q).view(1, 4, 1, 1).expand(1, 4, T, 1)], -1)
    weights = scores.softmax(-1)
    return weights, weights[..., :T] @ v.repeat_interleave(2, 1)


@pytest.mark.parametrize("bits", [8, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": regard.causal},
        {"mask": regard.causal & regard.window(9)},
        {"mask": regard.causal, "sinks": torch.tensor([1.0, -1.0, 0.0, 2.0])},
        {"mask": regard.causal, "softcap": 1.5},
    ],
    ids=["causal", "window", "sinks", "soft cap"],
)
def test_changes_are_as_exact_as_eager_code(options: dict, bits: int) -> None:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, n, 50, 16, generator=draw) for n in (4, 2, 2))
    found = measure_rounding(regard.attention_map(q, k, **options), v, bits, group=8)
    pairs = {}
    for dtype in (torch.float64, torch.float32):
        rounded = round_cache(k, bits, "channel", 8).to(dtype), round_cache(v, bits, "token", 8).to(dtype)
        before, output = dense(q.to(dtype), k.to(dtype), v.to(dtype), options)
        after, other = dense(q.to(dtype), *rounded, options)
        error = (other - output).norm(dim=-1) / output.norm(dim=-1)
        pairs[dtype] = (after - before).abs().sum(-1) / 2, error
    for ours, exact, eager in zip(found, pairs[torch.float64], pairs[torch.float32], strict=True):
        assert truth.ratio_to_torch(ours.float(), eager, exact) <= 2


def test_a_capture_says_what_rounding_changes() -> None:
    seen = captured(40)
    found = {bits: seen.rounded(bits) for bits in (8, 4, 3, 2)}
    assert found[4].variation.shape == found[4].error.shape == (2, 1, 4, 40)
    means = [float(found[bits].variation.mean()) for bits in (8, 4, 3, 2)]
    assert means == sorted(means)
    assert float(found[8].error.mean()) < 0.02
    assert str(found[2]).startswith("2 bits (keys by channel and values by token): ")
    only_values = seen.rounded(3, keys=None)
    assert float(only_values.variation.max()) < 1e-6
    assert float(only_values.error.mean()) > 0.01


def test_what_cannot_be_rounded_is_refused_in_a_sentence() -> None:
    seen = captured(8)
    with pytest.raises(ValueError, match="bits: expected a whole number from 1 to 16, got 0"):
        seen.rounded(0)
    with pytest.raises(ValueError, match="by: expected 'channel' or 'token', got 'head'"):
        seen.rounded(4, keys="head")
    with pytest.raises(ValueError, match="got neither"):
        seen.rounded(4, keys=None, values=None)
    with pytest.raises(ValueError, match="capture with values=True"):
        captured(8, values=False).rounded(4).error  # noqa: B018
