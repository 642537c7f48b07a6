"""Running sums behind the head scores, from which means, baselines and 95% intervals are computed.

The sums of several texts can be added.

A score is a mean over queries, so the sum over queries and their number are enough. The interval treats a
piece (a text, or a block of a single one) as one observation: neighbouring queries are correlated, so their
number says little. This file knows sums; it does not know maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from regard.heads.measures.query_scores import NAMES, QueryScore
from regard.heads.measures.tallies import Tallies

BLOCKS = 20  # into which a single text is cut
SUMS = (
    "value",
    "null",
    "relabelled",
    "without_sink",
    "positional",
)  # each a sum over queries and their number
NO_SHARES = ("distance", "patch_distance", "entropy", "effective_length")  # scores that may exceed 1
MOMENTS = ("pieces", "squares", "products", "counts_squared")  # of value and number, over pieces


class Estimates(NamedTuple):
    """The scores of heads, each field (score, head) in float64 on the host; NaN where not defined."""

    value: Tensor
    null: Tensor
    """The same of uniform attention to the visible keys."""
    relabelled: Tensor
    """The same with the tokens shuffled, for scores that depend on which tokens are equal."""
    without_sink: Tensor
    """The same of rows renormalised without their sink."""
    low: Tensor
    high: Tensor
    """The ends of the 95% interval."""
    queries: Tensor
    """The number of queries for which the score is defined."""
    positional: Tensor
    """The same of attention to one offset, whatever is there, for scores that depend on equal tokens."""


@dataclass
class RunningSums:
    """The sums of one layer, on the device of its map."""

    sums: Tensor
    """(sum, score, head) in float64."""
    tallies: Tallies
    """What every position, offset and token id received."""

    @classmethod
    def from_pieces(cls, pieces: Mapping[str, Tensor], tallies: Tallies) -> RunningSums:
        """Reduce the sums and numbers of pieces, (2, scores, H, pieces) for each name of `SUMS`."""
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
        return cls(sums, tallies)

    def fits(self, heads: int) -> bool:
        """Whether its tensors are those of so many heads, as `from_pieces` makes them."""
        expected = (2 * len(SUMS) + len(MOMENTS), len(NAMES), heads)
        return (
            tuple(self.sums.shape) == expected
            and self.sums.dtype == torch.float64
            and self.tallies.fits(heads)
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {"sums": self.sums, **self.tallies.tensors}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> RunningSums:
        """The same from its tensors by name."""
        parts = dict(tensors)
        return cls(parts.pop("sums"), Tallies(**parts))

    def __add__(self, other: RunningSums) -> RunningSums:
        return RunningSums(self.sums + other.sums.to(self.sums.device), self.tallies + other.tallies)

    @classmethod
    def join(cls, layers: Sequence[RunningSums]) -> RunningSums:
        """The sums of several layers as `split` takes them."""
        return cls(torch.cat([x.sums for x in layers], -1), Tallies.join([x.tallies for x in layers]))

    def split(self, layers: int) -> list[RunningSums]:
        """The sums of each of so many layers, whose heads lie one layer after another."""
        parts = zip(self.sums.chunk(layers, -1), self.tallies.split(layers), strict=True)
        return [RunningSums(sums.contiguous(), tallies) for sums, tallies in parts]

    def queries(self, name: str) -> Tensor:
        """The number of queries for which a score is defined, (H,)."""
        return self.sums[1, NAMES.index(name)]

    def means(self, name: str) -> list[float]:
        """A score of every head; NaN where it is defined for no query."""
        mean = self.sums[0, NAMES.index(name)] / self.queries(name)
        return mean.tolist()


def estimate_heads(layers: Sequence[RunningSums]) -> Estimates:
    """The scores `NAMES` of all heads of some layers, in their order, with baselines and intervals."""
    # All heads at once: reading tensors one by one takes most of the time of a table.
    sums = torch.cat([layer.sums.cpu() for layer in layers], -1)
    ratios = sums[: 2 * len(SUMS) : 2] / sums[1 : 2 * len(SUMS) : 2]  # NaN for 0 / 0
    value, null, relabelled, without_sink, positional = ratios
    count, moments = sums[1], sums[2 * len(SUMS) :]
    low, high = ratio_intervals(value, count, *moments)
    # All but a distance begin at 0, and shares end at 1.
    least = [-math.inf if name == "distance" else 0.0 for name in NAMES]
    most = [math.inf if name in NO_SHARES else 1.0 for name in NAMES]
    ends = torch.tensor([least, most], dtype=torch.float64, device="cpu").unsqueeze(-1)
    low, high = low.maximum(ends[0]), high.minimum(value.maximum(ends[1]))
    return Estimates(value, null, relabelled, without_sink, low, high, count, positional)


def sum_pieces(
    groups: Mapping[str, Mapping[str, QueryScore]],
    shape: tuple[int, int, int],
    pieces: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Sum scores (B, H, T) over pieces of texts, and count: (2, scores, H, B · pieces) of each group."""
    B, H, T = shape
    # max: an empty map has no query, and no piece.
    piece = torch.arange(T, device=device) * pieces // max(T, 1)
    # A product with 0 and 1: the same bits every time, on a GPU, too, where index_add_ has no order.
    is_in = (piece.unsqueeze(-1) == torch.arange(pieces, device=device)).double()  # (T, pieces)
    named = {(group, name): score for group, scores in groups.items() for name, score in scores.items()}
    nothing = torch.zeros(1, 1, 1, dtype=torch.bool, device=device)  # the last row, of names without a score
    scores = [*named.values(), QueryScore(nothing.float(), nothing)]
    defined = torch.stack([score.defined.expand(shape) for score in scores])  # (rows, B, H, T)
    values = torch.stack([score.values.expand(shape) for score in scores]).double()
    found = torch.stack([values.masked_fill_(~defined, 0.0) @ is_in, defined.double() @ is_in])
    row_of = {key: row for row, key in enumerate(named)}
    rows = [row_of.get((group, name), -1) for group in groups for name in NAMES]
    by_group = found[:, rows].view(2, len(groups), len(NAMES), B, H, pieces).unbind(1)
    return {group: x.transpose(2, 3).flatten(-2) for group, x in zip(groups, by_group, strict=True)}


def ratio_interval(
    ratio: float,
    count: float,
    pieces: float,
    squares: float,
    products: float,
    counts_squared: float,
    share: float = 0.95,
) -> tuple[float, float]:
    """The ends of the interval of one ratio; see `ratio_intervals`."""
    sums = (ratio, count, pieces, squares, products, counts_squared)
    value, n, *moments = torch.tensor(sums, dtype=torch.float64, device="cpu")
    low, high = ratio_intervals(value, n, moments[0], moments[1], moments[2], moments[3], share)
    return low.item(), high.item()


def ratio_intervals(
    ratio: Tensor,
    count: Tensor,
    pieces: Tensor,
    squares: Tensor,
    products: Tensor,
    counts_squared: Tensor,
    share: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """The ends of the intervals of ratios Σ value / Σ count over pieces; NaN of fewer than two pieces.

    `share` is their confidence level; `count` is Σ count, `squares` Σ value², `products` Σ value · count, and
    `counts_squared` Σ count², all of one shape, in float64.
    """
    # The variance of a ratio of sums, from the residual of every piece.
    spread = squares - 2 * ratio * products + ratio**2 * counts_squared
    # clamp: the spread is a difference of sums, and may be −1e-17 where all pieces agree.
    error = (spread.clamp(min=0.0) * pieces / (pieces - 1)).sqrt() / count
    numbers, places = torch.unique(pieces, return_inverse=True)
    quantiles = [students_t(int(n) - 1, share) if n >= 2 else math.nan for n in numbers.tolist()]
    reach = torch.tensor(quantiles, dtype=torch.float64, device=ratio.device)[places] * error
    return ratio - reach, ratio + reach


@cache
def students_t(freedom: int, share: float = 0.95) -> float:
    """The two-sided quantile of Student's t distribution, for a confidence level `share`.

    >>> [round(students_t(n), 2) for n in (1, 2, 3, 9, 1000)]
    [12.71, 4.3, 3.18, 2.26, 1.96]
    >>> round(students_t(4, 1 - 0.05 / 24), 2)
    7.1
    """
    # The expansion below is coarse for few degrees of freedom; the angle is atan(t / √freedom).
    if freedom <= 30:
        low, high = 0.0, math.pi / 2
        for _ in range(100):
            angle = (low + high) / 2
            low, high = (angle, high) if _t_level(angle, freedom) < share else (low, angle)
        return math.tan(low) * math.sqrt(freedom)
    z, n = NormalDist().inv_cdf((1 + share) / 2), freedom  # in the expansion of Cornish and Fisher
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _t_level(angle: float, freedom: int) -> float:
    """The probability that |t| is below tan(angle) · √freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    level = math.sin(angle) * total
    return 2 / math.pi * (angle + level) if odd else level
