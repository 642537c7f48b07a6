"""The proof that a picture is the truth: how far a map is from the output that the model really used.

A layer is certified when the map's weights times the values give the layer's own output, to within rounding,
and every row of weights sums to 1. What cannot be certified says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.masks import Window
from regard.attention.rules import And, Mask, Rows
from regard.maps import AttentionMap

ROWS = 64  # rows that are looked at where there are more
TILE = 1 << 26  # bytes of weights computed at a time


@dataclass(frozen=True)
class Evidence:
    """What was found of one layer."""

    difference: float
    """The largest |weights · v − output| over the rows that were looked at."""
    allowed: float
    """What rounding explains, at the layer's dtype and the size of its values."""
    row_sums: float
    """The largest |sum of a row − 1|, the share of a sink counted in."""
    rows: int
    """How many rows were looked at, of `of`."""
    of: int
    mask: str
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False
    problem: str | None = None
    """Why the layer cannot be certified whatever the numbers say, or None."""
    sums_allowed: float = 1e-3
    """How far from 1 rounding takes the sum of a row."""

    @property
    def certified(self) -> bool:
        return (
            self.problem is None
            and self.difference <= self.allowed
            and self.row_sums <= self.sums_allowed  # false for NaN, as it should be
        )

    @property
    def strain(self) -> float:
        """How much of what rounding allows was used: 1 and more is too much."""
        return max(self.difference / max(self.allowed, 1e-300), self.row_sums / self.sums_allowed)

    def __str__(self) -> str:
        looked = f"{self.rows:,} of {self.of:,} rows"
        if self.problem is not None:
            return f"not certified: {self.problem}"
        if not self.certified:
            return (
                f"not certified: off by {self.difference:.1e} ({self.allowed:.1e} would be rounding), "
                f"rows sum to 1 within {self.row_sums:.1e}; {looked}"
            )
        return f"certified within {self.difference:.1e}; {looked}; {self.mask}"


class Certificate(Sequence[Evidence]):
    """The evidence of every layer, by position; prints as a table."""

    def __init__(self, names: Sequence[str], evidence: Sequence[Evidence]) -> None:
        self.names, self.evidence = list(names), list(evidence)

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.evidence[index]

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence)

    @property
    def certified(self) -> bool:
        """Whether every layer is."""
        return all(found.certified for found in self.evidence)

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        rows = zip(self.names, self.evidence, strict=True)
        return "\n".join(f"{name:<{width}}  {found}" for name, found in rows)


def examine(map: AttentionMap, v: Tensor, output: Tensor, *, problem: str | None = None) -> Evidence:
    """Hold a map (B, H, T, S) with values v (B, G, S, E) against the output (B, H, T, E) that was used."""
    B, H, T, S = map.matrix
    rows = sampled_rows(T).to(map.device)
    differences, sums, scores = ([rows.new_zeros((), dtype=map.dtype)] for _ in range(3))
    group = H // max(map.k.shape[1], 1)
    heads_at_once = max(1, TILE // max(1, B * len(rows) * S * map.dtype.itemsize) // group) * group
    for first in range(0, H if 0 not in (B, T, S) else 0, heads_at_once):
        some = slice(first, first + heads_at_once)
        part = map[:, some]
        values = v[:, first // group : (first + heads_at_once) // group].to(map.dtype)  # (B, g, S, E)
        weights = part.tile(rows)  # (B, h, rows, S)
        mixed = _finite_product(weights.view(B, values.shape[1], -1, S), values)
        lse = part.lse[:, :, rows]
        total = weights.sum(-1)
        if part.sinks is not None:
            total = total + (part.sinks.to(lse.dtype).view(1, -1, 1) - lse).exp()
        seen = lse > -torch.inf
        given = output[:, some][:, :, rows].to(map.dtype)
        differences.append((mixed.view(given.shape) - given).abs().amax())
        sums.append(((total - 1.0) * seen).abs().amax())
        scores.append(lse.abs().masked_fill(~seen, 0.0).amax())
    difference, row_sums, score = (float(torch.stack(found).amax()) for found in (differences, sums, scores))
    size = _size(v)
    working, kept = torch.finfo(map.dtype).eps, torch.finfo(output.dtype).eps
    # A score of size s is known to s · eps, and so is the logarithm of its weight. Kernels of the half
    # precisions round the weights and the output once each.
    shaky = working * (32.0 + 8.0 * score)
    allowed = size * (2.0 * kept + shaky) + torch.finfo(output.dtype).tiny
    return Evidence(
        difference,
        allowed,
        row_sums,
        len(rows),
        T,
        str(map.mask),
        map.scale,
        map.softcap,
        window_of(map.mask),
        map.sinks is not None,
        problem,
        shaky + (kept / 8 if kept > working else 0.0),  # kernels of the half precisions have a quick exp
    )


def joined(first: Evidence, second: Evidence, mask: Mask) -> Evidence:
    """The evidence of two stretches of rows of one layer: the worse of the two, over the rows of both."""
    worse = first if first.strain >= second.strain or first.strain != first.strain else second
    return replace(
        worse,
        rows=first.rows + second.rows,
        of=first.of + second.of,
        mask=str(mask),
        window=window_of(mask),
        problem=first.problem or second.problem,
    )


def sampled_rows(T: int, most: int = ROWS) -> Tensor:
    """All rows, or `most` of them: the first, the last and others drawn, the same ones every time."""
    if most >= T:
        return torch.arange(T)
    drawn = torch.randperm(T - 2, generator=torch.Generator().manual_seed(T))[: most - 2] + 1
    return torch.cat([torch.tensor([0, T - 1]), drawn]).sort().values


def window_of(mask: Mask) -> int | None:
    """The size of the sliding window in a mask, if there is one."""
    if isinstance(mask, Window):
        return mask.size
    if isinstance(mask, And):
        return window_of(mask.left) or window_of(mask.right)
    return window_of(mask.inner) if isinstance(mask, Rows) else None


def _finite_product(weights: Tensor, values: Tensor) -> Tensor:
    """weights · values; NaN and infinities count only where they are looked at, as 0 · NaN is NaN."""
    product = weights @ values
    if bool(product.isfinite().all()):
        return product
    seen = weights.amax(-2).unsqueeze(-1) > 0  # (B, g, S, 1)
    return weights @ values.masked_fill(~seen, 0.0)


def _size(values: Tensor) -> float:
    """The largest |value| that is finite."""
    if not values.numel():
        return 0.0
    largest = float(torch.stack(values.aminmax()).abs().amax())
    return largest if math.isfinite(largest) else float(values.nan_to_num(0.0, 0.0, 0.0).abs().amax())
