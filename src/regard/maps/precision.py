"""Heads whose scores are too large for float32: which they are, and their weights in float64.

A weight is exp(score − lse), and the score is computed again, by another kernel than the one that gave lse.
Float32 knows either to a few units in its last place, so the weight of a score of 1,000 is off by 1e-4, where
the softmax of eager attention subtracts one rounding error from itself. Heads with such scores are computed
in float64, from the same q and k, with a row log-sum-exp that is computed in float64 when a row is first
looked at. All other heads stay in float32 and cost what they did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends import tiled_attention
from regard.attention.backends.problem import AttentionProblem
from regard.attention.masks.base import Blocks, full
from regard.maps.sweep import first_position

if TYPE_CHECKING:
    from regard.maps.map import AttentionMap

# A row that spreads its attention over n keys with scores of about 1 has lse = ln n + ½, and its weights are
# small, and so is their error. Above these limits some key may have most of the weight, and a score whose
# last digits matter. `benchmarks/exactness.py` shows what a limit does.
MARGIN = 1.4  # of lse above ln n
LEAST = 5.5  # of lse, where few keys are visible
# On a GPU the kernels for half precision are many times as fast as float64, and eager attention, which rounds
# its scores to half precision, errs a thousand times as much as they do.
LEAST_FOR_KERNELS = 24.0


class Precise(NamedTuple):
    """Which heads are computed in float64, and what is known of their row log-sum-exp."""

    large: Tensor  # (B, H) booleans, on the CPU
    lse: Tensor | None  # (B, H, T) float64, NaN where it was not computed yet; None if no head is large

    def select(self, batch: slice, heads: slice) -> Precise:
        """For some sequences and heads. What is computed there is known here, too: the memory is the same."""
        large = self.large[batch, heads]
        return Precise(large, None if self.lse is None or not bool(large.any()) else self.lse[batch, heads])

    def of_rows(self, rows: slice) -> Precise:
        return self if self.lse is None else self._replace(lse=self.lse[:, :, rows])

    def to(self, device: torch.device) -> Precise:
        return self if self.lse is None else self._replace(lse=self.lse.to(device))


class Share(NamedTuple):
    """Some heads of a map that are computed alike; a large one's map computes in float64."""

    map: AttentionMap
    batch: slice
    heads: slice


def none_large(m: AttentionMap) -> Precise:
    return Precise(torch.zeros(m.matrix[:2], dtype=torch.bool), None)


def precise_of(m: AttentionMap) -> Precise:
    """Which heads of a map have scores too large for its dtype."""
    if m.dtype == torch.float64 or 0 in m.matrix:
        return none_large(m)
    size = m.lse.nan_to_num(0.0, 0.0, 0.0).abs()  # (B, H, T)
    large = (size > _limits(m)).any(-1).cpu()  # of q and k nothing is read: they may lie in a file
    if not bool(large.any()):
        return Precise(large, None)
    with torch.inference_mode(False):  # it is written to later, perhaps outside of that mode
        return Precise(large, torch.full(m.lse.shape, torch.nan, dtype=torch.float64, device=m.device))


def _limits(m: AttentionMap) -> Tensor | float:
    """The largest |lse| that float32 serves, for every row (T,) or for all."""
    S, first = m.matrix[3], first_position(m)
    if m.device.type == "cuda" and m.q.dtype != torch.float32:
        return max(LEAST_FOR_KERNELS, math.log(S) + MARGIN)
    if m.mask is full or _looks_ahead(m, first):
        return max(LEAST, math.log(S) + MARGIN)
    visible = torch.arange(first + 1, first + 1 + m.matrix[2], device=m.device).clamp(1, S)
    return visible.to(m.dtype).log_().add_(MARGIN).clamp_(min=LEAST)


def _looks_ahead(m: AttentionMap, first: int) -> bool:
    """Whether the first query may look at a key after its own place, or the mask cannot tell."""
    _, _, T, S = m.matrix
    own = min(max(first, 0), S - 1)
    if own == S - 1:
        return True
    # As a rule of T queries and S keys numbers them, the first query stands at S − T.
    places = (S - T, S - T, own + 1, S - 1)
    q_first, q_last, k_first, k_last = (torch.tensor([[n]], device=m.device) for n in places)
    return bool(m.mask.block_bounds(Blocks(q_first, q_last, k_first, k_last, T, S))[0].any())


def shares(m: AttentionMap, rows: slice | Tensor = slice(None)) -> Iterator[Share]:
    """The map in parts that are computed alike, so that `rows` of it can be looked at."""
    B, H = m.matrix[:2]
    if not bool(m.precise.large.any()):
        yield Share(m, slice(0, B), slice(0, H))
        return
    complete(m, rows)
    for batch, heads, large in _runs(m.precise.large):
        part = m.select(batch, heads)
        yield Share(_in_float64(part) if large else part, batch, heads)


def each(
    m: AttentionMap, look: Callable[[Share], Sequence[Tensor]], rows: slice | Tensor = slice(None)
) -> list[Tensor]:
    """What `look` finds in every head, (B, H, …) each, in the map's dtype."""
    B, H = m.matrix[:2]
    out: list[Tensor] = []
    for share in shares(m, rows):
        found = look(share)
        if share.map is m:
            return list(found)
        if not out:
            out = [
                x.new_empty(B, H, *x.shape[2:], dtype=m.dtype if x.dtype.is_floating_point else x.dtype)
                for x in found
            ]
        for whole, part in zip(out, found, strict=True):
            whole[share.batch, share.heads] = part
    return out


def _runs(large: Tensor) -> Iterator[tuple[slice, slice, bool]]:
    """Sequences and heads in a row that are large or are not."""
    B, H = large.shape
    if bool(large.all()):
        yield slice(0, B), slice(0, H), True
        return
    for b in range(B):
        for flag, heads in groupby(range(H), lambda h, b=b: bool(large[b, h])):  # type: ignore[misc]
            numbers = list(heads)
            yield slice(b, b + 1), slice(numbers[0], numbers[-1] + 1), flag


def _in_float64(m: AttentionMap) -> AttentionMap:
    lse = m.precise.lse
    assert lse is not None
    return m.replaced(lse=lse, precise=none_large(m))


def complete(m: AttentionMap, rows: slice | Tensor) -> None:
    """Compute what is not known yet of the log-sum-exp of the large heads in some rows."""
    for batch, heads, large in _runs(m.precise.large) if m.precise.lse is not None else ():
        if large:
            _complete(m.select(batch, heads), rows)


@torch.no_grad()
def _complete(m: AttentionMap, rows: slice | Tensor) -> None:
    lse = m.precise.lse
    assert lse is not None
    unknown = lse[:, :, rows].isnan().flatten(0, 1).any(0).nonzero().flatten()  # counted in rows
    if not len(unknown):
        return
    if isinstance(rows, slice):
        start = rows.indices(m.matrix[2])[0]
        rows = slice(start + int(unknown[0]), start + int(unknown[-1]) + 1)
        part = m.some_rows(rows)
        problem = AttentionProblem(
            m.q[:, :, rows], m.k, m.k[..., :0], part.mask, m.scale, m.softcap, m.sinks, 0.0
        )
        exact = tiled_attention.forward(problem, 0, torch.float64)[1]
    else:
        rows = rows[unknown]
        exact = m._exact_rows(rows)[1]
    given = m.lse[:, :, rows].double()
    # A given lse that rounding does not explain is somebody's mistake, and has to show.
    lse[:, :, rows] = exact.where((exact - given).abs() <= _rounding(m, rows, given), given)


def _rounding(m: AttentionMap, rows: slice | Tensor, given: Tensor) -> Tensor:
    """How far from the truth a kernel's row log-sum-exp may be, (B, H, rows)."""
    q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) for x in (m.q[:, :, rows], m.k))
    longest = k.nan_to_num_(0.0, 0.0).amax(-1)  # (B, G); padding may hold anything
    # No score is larger than this, nor is any sum on the way to one.
    reach = q * longest.repeat_interleave(m.q.shape[1] // m.k.shape[1], 1)[..., None] * abs(m.scale)
    rounding: Tensor = 8 * torch.finfo(torch.float32).eps * (4.0 + given.abs() + reach)
    eps = torch.finfo(m.q.dtype).eps  # kernels for half precision have a quick exp
    return rounding + (eps / 8 if eps > torch.finfo(torch.float32).eps else 0.0)
