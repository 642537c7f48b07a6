"""Sums that scores are made of: they add up over texts, and a score, its nulls and its interval follow.

A score is a mean over queries, so the sum over queries and their number are enough. The interval treats what
was read in one piece (a text, or a block of one where there is only one) as one observation: neighbouring
queries are alike, so their number says little. This file knows sums; it does not know maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from regard.heads.query_scores import NAMES, QueryScore

BLOCKS = 20  # of a single text
SUMS = ("value", "null", "labels", "rest")  # each a sum over queries and their number
MOMENTS = ("pieces", "squares", "products", "counts_squared")  # of value and number, over pieces


class Estimate(NamedTuple):
    """A score of one head. NaN where there was no occasion."""

    value: float
    null: float
    """The same for looking alike at everything that can be seen."""
    labels: float
    """The same with the tokens' labels shuffled, for scores that ask which tokens are equal."""
    rest: float
    """The same over the rest of each row, the sink left out."""
    low: float
    high: float
    queries: float
    """How many had an occasion."""


@dataclass
class RunningSums:
    """The sums of one layer: (sum, score, head) in float64, and how often which key got most, (H, S)."""

    sums: Tensor
    keys: Tensor

    @classmethod
    def of(cls, pieces: Mapping[str, Tensor], keys: Tensor) -> RunningSums:
        """From sums and numbers of pieces, by name of `SUMS`: (2, scores, H, pieces) each."""
        value, count = pieces["value"]
        moments = torch.stack(
            [
                (count > 0).double().sum(-1),
                (value * value).sum(-1),
                (value * count).sum(-1),
                (count * count).sum(-1),
            ]
        )
        sums = torch.cat([*(pieces[name].sum(-1) for name in SUMS), moments])
        return cls(sums, keys)

    def __add__(self, other: RunningSums) -> RunningSums:
        longest = max(self.keys.shape[1], other.keys.shape[1])
        mine, theirs = (
            torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in (self.keys, other.keys)
        )
        return RunningSums(self.sums + other.sums, mine + theirs)

    def sink_key(self, head: int) -> int | None:
        """The key that got most in most texts."""
        counts = self.keys[head]
        return int(counts.argmax()) if counts.any() else None

    def estimate(self, name: str, head: int) -> Estimate:
        names = [*(f"{x}{y}" for x in SUMS for y in ("", "_n")), *MOMENTS]
        sums = dict(zip(names, self._of(name, head), strict=True))
        value, null, labels, rest = (_ratio(sums[x], sums[f"{x}_n"]) for x in SUMS)
        n = sums["pieces"]
        low = high = math.nan
        if n > 1:
            # The variance of a ratio of sums: every piece's own departure from the common ratio.
            spread = sums["squares"] - 2 * value * sums["products"] + value**2 * sums["counts_squared"]
            error = math.sqrt(max(spread, 0.0) * n / (n - 1)) / sums["value_n"]
            reach = students_t(int(n) - 1) * error
            low, high = value - reach, value + reach
            if name != "distance":
                low = max(low, 0.0)
            if name not in ("distance", "entropy"):
                high = min(high, max(value, 1.0))
        return Estimate(value, null, labels, rest, low, high, sums["value_n"])

    def _of(self, name: str, head: int) -> list[float]:
        found: list[float] = self.sums[:, NAMES.index(name), head].tolist()
        return found


def in_pieces(
    readings: Mapping[str, QueryScore], shape: tuple[int, int, int], pieces: int, device: torch.device
) -> Tensor:
    """Sums and numbers of readings (B, H, T) over pieces of texts: (2, scores, B, H, pieces) in float64."""
    B, H, T = shape
    out = torch.zeros(2, len(NAMES), B, H, pieces, dtype=torch.float64, device=device)
    piece = torch.arange(T, device=device) * pieces // max(T, 1)
    for name, (values, counted) in readings.items():
        counted = counted.expand(shape)
        values = values.expand(shape).double().masked_fill(~counted, 0.0)
        out[0, NAMES.index(name)].index_add_(-1, piece, values)
        out[1, NAMES.index(name)].index_add_(-1, piece, counted.double())
    return out


def students_t(freedom: int, share: float = 0.95) -> float:
    """How many standard errors hold the given share on both sides, for so many degrees of freedom.

    >>> [round(students_t(n), 2) for n in (1, 2, 3, 9, 1000)]
    [12.71, 4.3, 3.18, 2.26, 1.96]
    """
    p = (1 + share) / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z, n = NormalDist().inv_cdf(p), freedom  # then the expansion of Cornish and Fisher
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
