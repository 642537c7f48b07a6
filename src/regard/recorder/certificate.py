"""The certificate: these are the weights that produced the output which the model gives without capture.

A layer is certified when the map's weights times the values give the output of the model's own
implementation, to within rounding, on the rows that were compared, and every row of weights sums to 1. The
tolerance does not depend on the size of the scores. What was not compared is not certified, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import AttentionMap

ROWS = 64  # rows that are compared where there are more
TILE = 1 << 26  # bytes of weights computed at a time
ROUNDINGS = {torch.float32: 256, torch.float64: 1024}
"""By how many units in the last place a kernel's output, or the sum of a row, may be off. Large scores are
recomputed in float64, where a float32 map is exact; a float64 map has nothing finer to be computed in."""
TELLING = 8  # tolerances that values must differ by for an output to tell weights apart
HALF = 1e-3  # the tolerance of weights in half precision is larger
OWN_OUTPUT = "this layer's own attention output"


@dataclass(frozen=True)
class Evidence:
    """What was found of one layer."""

    difference: float
    """|weights · v − output| at the entry with the largest ratio to its tolerance, over the rows compared."""
    allowed: float
    """The tolerance there: what rounding explains, at the layer's dtype and the size of its values."""
    row_sums: float
    """The largest |sum of a row − 1|, the share of a sink logit counted in."""
    rows: int
    """How many rows were compared, of `of`."""
    of: int
    mask: str
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False
    problem: str | None = None
    """Why the layer cannot be certified whatever the numbers say, or None."""
    sums_allowed: float = 1e-4
    """How far from 1 rounding takes the sum of a row."""
    against: str = OWN_OUTPUT
    """What the weights were compared with."""
    weights: float | None = None
    """The largest difference from the weights of the model's own implementation, where it gives them."""
    weights_allowed: float = 0.0
    scores: float = 0.0
    """The largest |log-sum-exp| of a row, about as large as its largest score."""
    blind: int = 0
    """Rows compared that may look at nothing: the map shows zeros, whatever the model makes of them."""

    @property
    def certified(self) -> bool:
        # Each comparison is false for NaN, as it should be.
        return (
            self.problem is None
            and self.difference <= self.allowed
            and self.row_sums <= self.sums_allowed
            and (self.weights is None or self.weights <= self.weights_allowed)
        )

    @property
    def strain(self) -> float:
        """How much of what rounding allows was used: 1 and more is too much."""
        return max(self.difference / max(self.allowed, 1e-300), self.row_sums / self.sums_allowed)

    def __str__(self) -> str:
        compared = f"{self.rows:,} of {self.of:,} rows"
        if self.problem is not None:
            return f"not certified: {self.problem}"
        if not self.certified:
            own = "" if self.weights is None else f", off its own weights by {self.weights:.1e}"
            large = f"; scores reach {self.scores:.0e}, where kernels round" if self.scores > 100 else ""
            if self.weights is not None and self.weights_allowed > HALF:
                large = '; it rounds its scores to half precision, which "sdpa" and "regard" do not'
            return (
                f"not certified: off {self.against} by {self.difference:.1e} ({self.allowed:.1e} would be "
                f"rounding){own}, rows sum to 1 within {self.row_sums:.1e}; {compared}{large}"
            )
        blind = f"; {self.blind:,} that may look at nothing are shown as zeros" if self.blind else ""
        return (
            f"certified: weights times values are within {self.difference:.1e} of {self.against}; "
            f"{compared} compared{blind}; {self.mask}"
        )


@dataclass
class Certificate(Sequence[Evidence]):
    """The evidence of every layer, by position; prints as a table."""

    names: Sequence[str]
    evidence: Sequence[Evidence]
    missing: Mapping[str, str] = field(default_factory=dict)
    """The modules that mix tokens and were not captured, each with what it is."""

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        """The evidence of a layer, by the key that `seen[key]` takes; by position where no layer has it."""
        if str(index) in self.names:
            return self.evidence[list(self.names).index(str(index))]
        if isinstance(index, str):
            raise KeyError(f"layer: expected one of {list(self.names)}, got {index!r}")
        return self.evidence[index]

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence)

    @property
    def certified(self) -> bool:
        """Whether every layer that was captured is."""
        return all(found.certified for found in self.evidence)

    @property
    def complete(self) -> bool:
        """Whether every module that mixes tokens was captured, as far as can be told."""
        return not self.missing

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        rows = zip(self.names, self.evidence, strict=True)
        lines = [f"{name:<{width}}  {found}" for name, found in rows]
        return "\n".join([*lines, *(f"missing: {name} ({what})" for name, what in self.missing.items())])


def examine(
    m: AttentionMap,
    v: Tensor,
    output: Tensor,
    *,
    weights: Tensor | None = None,
    own_lse: bool = False,
    soft_blind: bool = False,
    problem: str | None = None,
    against: str = OWN_OUTPUT,
    most: int | None = ROWS,
) -> Evidence:
    """Compare a map (B, H, T, S) and its values v (B, G, S, E) with the output (B, H, T, E) that was used.

    `weights` (B, H, T, S) are those of the model's own implementation, where it gives them; `own_lse` says
    that the map's lse came from the model's own kernel; `soft_blind` that finite numbers hide everything from
    some rows, so that their output has to be the mean value. At most `most` rows are compared, all if None.
    """
    B, H, T, S = m.matrix
    rows = sampled_rows(T, T if most is None else most).to(m.device)
    nothing = rows.new_zeros((), dtype=m.dtype)
    worst, tolerances, sums, off, blind, telling, scores = ([nothing] for _ in range(7))
    working, kept = torch.finfo(m.dtype).eps, torch.finfo(output.dtype).eps
    units = ROUNDINGS[m.dtype] * working
    kept = max(kept, torch.finfo(m.q.dtype).eps)  # queries and keys may be kept in another dtype
    rounding = 2.0 * kept + units  # kernels of the half precisions round weights and output
    group = H // max(m.k.shape[1], 1)
    heads_at_once = max(1, TILE // max(1, B * len(rows) * S * m.dtype.itemsize) // group) * group
    for first in range(0, H if 0 not in (B, T, S) else 0, heads_at_once):
        some = slice(first, first + heads_at_once)
        part = m[:, some]
        values = v[:, first // group : (first + heads_at_once) // group].to(m.dtype)  # (B, g, S, E)
        found = part.tile(rows)  # (B, h, rows, S)
        mixed = _finite_product(found.view(B, values.shape[1], -1, S), values)
        lse = part.lse[:, :, rows]
        total = found.sum(-1)
        if part.sinks is not None:
            total = total + (part.sinks.to(lse.dtype).view(1, -1, 1) - lse).exp()
        looks = (lse > -torch.inf) | lse.isnan()
        given = output[:, some][:, :, rows].to(m.dtype)
        size = _size(values)  # (B, g, 1, E)
        allowed = (size * rounding + torch.finfo(output.dtype).tiny).repeat_interleave(group, 1)
        ratio = (mixed.view(given.shape) - given).abs() / allowed
        blind_ratio = _unexplained(given, values, group) / allowed if soft_blind else torch.zeros_like(ratio)
        ratio = ratio.where(looks[..., None], blind_ratio)
        place = ratio.nan_to_num(torch.inf).argmax()
        worst.append(ratio.flatten()[place] if ratio.numel() else worst[0])
        tolerances.append(allowed.expand_as(ratio).flatten()[place] if ratio.numel() else worst[0])
        sums.append(((total - 1.0) * looks).abs().amax())
        blind.append((~looks).all(1).any(0).sum().to(m.dtype))  # in every head, in some text
        scores.append(lse.abs().masked_fill(~looks, 0.0).amax())
        telling.append(_unlike(values, size * rounding) if S > 1 else nothing)
        if weights is not None:
            own = weights[:, some][:, :, rows].to(m.dtype)
            off.append(_apart(found, own, looks))
            if part.sinks is not None:  # some implementations give them without the share of the sink logit
                shared = found.sum(-1, keepdim=True)
                without = _apart(found / shared, own, looks & (shared[..., 0] > 0))
                off[-1] = torch.minimum(off[-1], without)
    measured = torch.stack([torch.stack(x) for x in (worst, tolerances, sums, blind, telling, scores)])
    ratios, allowances, row_sums, blind_rows, alike, sizes = measured.tolist()  # waits for a GPU once
    at = max(range(len(ratios)), key=lambda i: math.inf if math.isnan(ratios[i]) else ratios[i])
    allowed_there = allowances[at] or rounding
    if problem is None and any(alike) and weights is None and not own_lse:
        problem = "its values are so much alike that its output says nothing of its weights"
    return Evidence(
        difference=ratios[at] * allowed_there,
        allowed=allowed_there,
        row_sums=_largest(row_sums),
        rows=len(rows),
        of=T,
        mask=str(m.mask),
        scale=m.scale,
        softcap=m.softcap,
        window=m.mask.window_size(),
        sinks=m.sinks is not None,
        problem=problem,
        sums_allowed=units + (kept / 8 if kept > working else 0.0),  # a kernel's quick exp
        against=against,
        weights=None if weights is None else float(torch.stack(off).amax()),
        weights_allowed=2.0 * (kept if weights is None else torch.finfo(weights.dtype).eps) + units,
        scores=_largest(sizes),
        blind=int(max(blind_rows)),
    )


def _unexplained(output: Tensor, values: Tensor, group: int) -> Tensor:
    """By how much the output of rows that may look at nothing is neither 0, nor the mean value, nor NaN."""
    mean = values.mean(2, keepdim=True).repeat_interleave(group, 1)  # (B, h, 1, E)
    return torch.minimum(output.abs(), (output - mean).abs()).nan_to_num(0.0)


def _largest(numbers: list[float]) -> float:
    """The largest, or NaN if there is one."""
    return next((x for x in numbers if math.isnan(x)), max(numbers))


def _apart(found: Tensor, own: Tensor, looks: Tensor) -> Tensor:
    """The largest difference between weights (B, h, rows, S), in the rows that may look at something."""
    return (found - own).abs().masked_fill(~looks[..., None], 0.0).amax()


def _unlike(values: Tensor, rounding: Tensor) -> Tensor:
    """1 if some head's values (B, g, S, E) are too alike for its output to distinguish weights."""
    spread = values.amax(2, keepdim=True) - values.amin(2, keepdim=True)
    told = (spread > TELLING * rounding) | ~spread.isfinite()
    return (~told.any(-1)).any().to(values.dtype)


def joined(first: Evidence, second: Evidence, mask: Mask) -> Evidence:
    """The evidence of two stretches of rows of one layer: the worse of the two, over the rows of both."""
    worse = first if first.strain >= second.strain or first.strain != first.strain else second
    own = [x.weights for x in (first, second) if x.weights is not None]
    return replace(
        worse,
        rows=first.rows + second.rows,
        of=first.of + second.of,
        mask=str(mask),
        window=mask.window_size(),
        problem=first.problem or second.problem,
        weights=max(own) if len(own) == 2 else None,
        blind=first.blind + second.blind,
    )


def sampled_rows(T: int, most: int = ROWS) -> Tensor:
    """All rows, or `most` of them: the first, the last and others drawn, the same ones every time."""
    if most >= T:
        return torch.arange(T)
    drawn = torch.randperm(T - 2, generator=torch.Generator().manual_seed(T))[: most - 2] + 1
    return torch.cat([torch.tensor([0, T - 1]), drawn]).sort().values


def _finite_product(weights: Tensor, values: Tensor) -> Tensor:
    """weights · values; NaN and infinities count only where they are looked at, as 0 · NaN is NaN."""
    product = weights @ values
    if bool(product.isfinite().all()):
        return product
    seen = weights.amax(-2).unsqueeze(-1) > 0  # (B, g, S, 1)
    return weights @ values.masked_fill(~seen, 0.0)


def _size(values: Tensor) -> Tensor:
    """The largest |value| of each channel that is finite: of values (B, g, S, E) it is (B, g, 1, E)."""
    largest = values.abs().amax(2, keepdim=True)
    if bool(largest.isfinite().all()):
        return largest
    return values.nan_to_num(0.0, 0.0, 0.0).abs().amax(2, keepdim=True)
