"""Computes the heads with large scores in float64 and all others in float32.

`large_heads.py` finds the heads with large scores. Their weights are computed in float64, from the same q and
k, with a row log-sum-exp that is computed in float64 when a row is first needed. All other heads stay in
float32 and cost what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.backends import tiled_attention
from regard.attention.backends.problem import AttentionProblem
from regard.maps.data import MapData
from regard.maps.tile_passes.dense_rows import exact_lse
from regard.maps.tile_passes.large_heads import no_large_heads

Value = TypeVar("Value")


class HeadGroup(NamedTuple):
    """Heads of a map that are computed in the same dtype; the lse of a large head is in float64."""

    data: MapData
    batch: slice
    heads: slice


def head_groups(m: MapData, rows: slice | Tensor = slice(None)) -> Iterator[HeadGroup]:
    """Split a map into groups of heads that are computed in the same dtype, ready to compute `rows`."""
    B, H = m.matrix[:2]
    if m.precise.lse is None:  # no head is large
        yield HeadGroup(m, slice(0, B), slice(0, H))
        return
    complete_lse(m, rows)
    for batch, heads, large in _runs(m.precise.large):
        part = m.select(batch, heads)
        yield HeadGroup(_in_float64(part) if large else part, batch, heads)


def compute(
    m: MapData,
    function: Callable[[HeadGroup], Sequence[Tensor]],
    rows: slice | Tensor = slice(None),
) -> list[Tensor]:
    """Call a function for every group of heads and join its results, (B, H, …) each, in the map's dtype.

    `rows` are those that the function needs.
    """
    B, H = m.matrix[:2]
    joined: list[Tensor] = []
    for group in head_groups(m, rows):
        results = function(group)
        # The whole map in one group: the results need not be copied.
        if group.data is m:
            return list(results)
        if not joined:
            joined = [
                # Keys of topk are integers, and keep their dtype.
                x.new_empty(B, H, *x.shape[2:], dtype=m.dtype if x.dtype.is_floating_point else x.dtype)
                for x in results
            ]
        for whole, part in zip(joined, results, strict=True):
            whole[group.batch, group.heads] = part
    return joined


def precise_lse(m: MapData, rows: slice | Tensor) -> Tensor:
    """The row log-sum-exp that the weights of some rows are computed with, (B, H, rows) in float64."""
    lse = m.lse[:, :, rows].double()
    for group in head_groups(m, rows):
        lse[group.batch, group.heads] = group.data.lse[:, :, rows].double()
    return lse


def select_region(m: MapData, rows: slice, keys: slice) -> MapData:
    """Select a run of rows and a run of keys; the rows of the result need not sum to 1."""
    part = m.select_rows(rows)
    if keys != slice(0, m.matrix[3]):
        complete_lse(part, slice(None))  # while all the keys are here
    return part.select_keys(keys)


def _runs(large: Tensor) -> Iterator[tuple[slice, slice, bool]]:
    """Neighbouring sequences and neighbouring heads that are all large or all not, with which it is.

    Heads come first, since one that is large in a text often is in the next.
    """
    columns: list[list[bool]] = large.T.tolist()  # (H, B)
    for column, heads in _stretches(columns):
        for flag, sequences in _stretches(column):
            yield sequences, heads, flag


def _stretches(values: Sequence[Value]) -> Iterator[tuple[Value, slice]]:
    """Each value that differs from the one before it, and where it stands and is repeated."""
    start = 0
    for value, repeats in groupby(values):
        stop = start + sum(1 for _ in repeats)
        yield value, slice(start, stop)
        start = stop


def _in_float64(m: MapData) -> MapData:
    """The same map with its lse in float64, in which it is then computed."""
    lse = m.precise.lse
    assert lse is not None
    return m._with(lse=lse, precise=no_large_heads(*m.matrix[:2]))


def complete_lse(m: MapData, rows: slice | Tensor) -> None:
    """Compute what is missing of the float64 log-sum-exp of the large heads in some rows, in place."""
    for batch, heads, large in _runs(m.precise.large) if m.precise.lse is not None else ():
        if large:
            _complete_lse(m.select(batch, heads), rows)


@torch.no_grad()
def _complete_lse(m: MapData, rows: slice | Tensor) -> None:
    """The same for a map all of whose heads are large."""
    lse = m.precise.lse
    assert lse is not None
    missing = lse[:, :, rows].isnan().flatten(0, 1).any(0).nonzero().flatten()  # counted in rows
    if not len(missing):
        return
    if isinstance(rows, slice):
        start = rows.indices(m.matrix[2])[0]
        rows = slice(start + int(missing[0]), start + int(missing[-1]) + 1)
        mask = m.select_rows(rows).mask
        problem = AttentionProblem(m.q[:, :, rows], m.k, m.k[..., :0], mask, m.scale, m.softcap, m.sinks, 0.0)
        exact = tiled_attention.forward(problem, 0, torch.float64)[1]
    else:
        rows = rows[missing]
        exact = exact_lse(m, rows)
    # An lse that differs from the exact one by more than rounding is wrong, and the difference has to show.
    old = m.lse[:, :, rows].double()
    lse[:, :, rows] = exact.where((exact - old).abs() <= _lse_tolerance(m, rows, old), old)


def _lse_tolerance(m: MapData, rows: slice | Tensor, lse: Tensor) -> Tensor:
    """The error that rounding in a kernel may add to a row log-sum-exp, (B, H, rows)."""
    q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) for x in (m.q[:, :, rows], m.k))
    longest = k.nan_to_num_(0.0, 0.0).amax(-1)  # (B, G); padding may hold anything
    # No score exceeds this bound, nor does any partial sum of one.
    bound = q * longest.repeat_interleave(m.q.shape[1] // m.k.shape[1], 1)[..., None] * abs(m.scale)
    tolerance: Tensor = 8 * torch.finfo(torch.float32).eps * (4.0 + lse.abs() + bound)
    eps = torch.finfo(m.q.dtype).eps  # kernels for half precision use a fast exp
    return tolerance + (eps / 8 if eps > torch.finfo(torch.float32).eps else 0.0)
