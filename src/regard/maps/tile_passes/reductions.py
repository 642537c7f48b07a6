"""The weights of a map and their reductions, each head in the precision that it needs: (B, H, …) each.

`AttentionMap` and `WeightedMap` share these; `dense_rows.py`, `overview.py` and `sweep.py` compute them for
heads of one precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.backends.triton.row_reductions import row_sums as row_sums_kernel
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps import kernels
from regard.maps.data import MapData
from regard.maps.index import diagonal_spans, select_kv_heads
from regard.maps.lazy_matrix import DENSE_LIMIT, refuse_large
from regard.maps.tile_passes import overview, precision, sweep
from regard.maps.tile_passes.dense_rows import partial_weights, tile_weights
from regard.maps.tile_passes.sweep import finite_lse

BAND_ROWS = 128  # queries of a tile along a band
BAND_NUMBERS = 1 << 22  # weights of one such tile: wider bands are passed over in tiles that fit the cache


def tile(m: MapData, rows: slice | Tensor, keys: slice | Tensor) -> Tensor:
    """The weights of some rows and some keys, (B, H, rows, keys)."""
    at = grid(rows, keys, m.matrix, m.device)
    B, H = m.matrix[:2]
    refuse_large(B * H * at.q.numel() * at.k.numel() * m.dtype.itemsize, DENSE_LIMIT)
    (weights,) = precision.compute(m, lambda group: [tile_weights(group.data, at)], at.rows)
    return weights


def pool(m: MapData, rows: Tensor, cols: Tensor, gain: Tensor | None = None) -> overview.Overview:
    """The weights pooled over spans between bounds (2, rows) and (2, cols): (B, H, rows, cols).

    `gain` (B, H, S), if given, multiplies those of each key.
    """
    if not rows.numel() or not cols.numel():
        shape = (2, *m.matrix[:2], rows.shape[1], cols.shape[1])
        return overview.Overview(*m.lse.new_zeros(shape, dtype=m.dtype))
    kept = None if gain is not None or m.kept is None else m.kept.pool(rows, cols, *m.matrix[2:])
    # The positions outside of all spans cost nothing.
    queries, keys = (slice(int(bounds[0, 0]), int(bounds[1, -1])) for bounds in (rows, cols))
    rows, cols = rows - queries.start, cols - keys.start
    part = precision.select_region(m, queries, keys)
    gain = None if gain is None else gain[:, :, keys]

    def pool_heads(group: precision.HeadGroup) -> Sequence[Tensor]:
        heads = group.batch, group.heads
        if kept is not None and group.data.dtype == m.dtype:  # large scores are computed in a wider one
            return [x[heads] for x in kept]
        return overview.pool(group.data, rows, cols, None if gain is None else gain[heads])

    return overview.Overview(*precision.compute(part, pool_heads))


def row_sums(m: MapData, gain: Tensor) -> Tensor:
    """The sum (B, H, T) of every row times `gain` (B, H, S)."""

    def add_up(group: precision.HeadGroup) -> list[Tensor]:
        u = gain[group.batch, group.heads]
        sums = kernels.run(row_sums_kernel, group.data, u)
        # Fused attention takes values in the dtype of q and k, or all of them in float32.
        return [multiply(group.data, u.unsqueeze(-1)).squeeze(-1) if sums is None else sums]

    return precision.compute(m, add_up)[0]


def received(m: MapData, row_weights: Tensor) -> Tensor:
    """The attention that each key receives, (B, H, S), from rows times `row_weights` (B, H, T).

    Rows whose weight is 0 in every head are not computed.
    """
    rows = row_weights.ne(0).flatten(0, 1).any(0).nonzero().flatten()
    (total,) = precision.compute(
        m, lambda group: [overview.received(group.data, row_weights[group.batch, group.heads], rows)], rows
    )
    return total


def mass(m: MapData, mask: Mask) -> Tensor:
    """The sum of every row under a mask that is narrower than the map's own, (B, H, T)."""

    def add_up(group: precision.HeadGroup) -> list[Tensor]:
        own_mask = mask.select(group.batch, group.heads)
        under = group.data._with(mask=own_mask)
        sums = _band_mass(under)
        return [overview.mass(under) if sums is None else sums]

    return precision.compute(m, add_up)[0]


def _band_mass(m: MapData) -> Tensor | None:
    """The sums of rows on a CPU from the keys of a narrow band alone; None if the mask is not one."""
    B, H, T, S = m.matrix
    # On a GPU the kernels have their own way for bands.
    band = m.mask.band(T, S) if m.device.type == "cpu" else None
    if band is None or band.behind is None or band.ahead is None:
        return None
    if B * H * BAND_ROWS * (BAND_ROWS + band.behind + band.ahead) > BAND_NUMBERS:
        return None
    total = m.lse.new_zeros(B, H, T)
    for first in range(0, T, BAND_ROWS):
        rows = slice(first, min(first + BAND_ROWS, T))
        start, stop = (position + S - T for position in (first - band.behind, rows.stop + band.ahead))
        keys = slice(max(start, 0), min(stop, S))
        if keys.start < keys.stop:
            total[:, :, rows] = partial_weights(m, grid(rows, keys, m.matrix, m.device)).sum(-1)
    return total


def diagonal(m: MapData, offset: int) -> Tensor:
    """The weights A[i, i + offset], (B, H, N): as many dot products as the diagonal is long."""
    rows, keys = diagonal_spans(offset, *m.matrix[2:])
    (weights,) = precision.compute(m, lambda group: [sweep.diagonal(group.data, rows, keys)], rows)
    return weights


def multiply(m: MapData, v: Tensor) -> Tensor:
    """The weights times values (B, G or H, S, E), (B, H, T, E) in the dtype of v, by fused attention."""
    B, H, T, _ = m.matrix
    if v.shape[1] != m.k.shape[1]:  # values for each query head: each reads its own copy of the keys
        # `precise` stays: repeating keys changes neither the scores nor which heads are large.
        m = m._with(k=m.k.repeat_interleave(H // m.k.shape[1], 1), precise=m.precise)
    output = v.new_empty(B, H, T, v.shape[-1])
    for group in precision.head_groups(m):
        values = select_kv_heads(v[group.batch], group.heads, H)
        output[group.batch, group.heads] = _multiply(group.data, values).to(v.dtype)
    return output


def _multiply(m: MapData, v: Tensor) -> Tensor:
    """The weights times values (B, G, S, E), in a dtype that loses nothing of q, k or v."""
    wide = m.lse.dtype if m.lse.dtype == torch.float64 else m.q.dtype
    dtype = torch.promote_types(wide, v.dtype)
    output, lse = attend(
        m.q.to(dtype),
        m.k.to(dtype),
        v.to(dtype),
        mask=m.mask,
        scale=m.scale,
        softcap=m.softcap,
        sinks=m.sinks,
        return_lse=True,
    )
    # Rescale to the map's own lse, from which all its other numbers are computed: a wrong one has to show.
    return output * (lse.detach() - finite_lse(m.lse)).exp_().unsqueeze(-1)
