"""Launches the Triton kernel that pools an attention matrix to equal bins.

A kernel works on blocks whose size is a power of two. Equal bins that fill such blocks are pooled here;
others (1,000 queries in 7 bins, or the words of a text) in `span_pool`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import KernelMap, padded
from regard.attention.backends.triton.row_reductions import CellArguments, launch_on_rows, statistics
from regard.attention.backends.triton.span_pool import pool_spans

PoolBins = int | Tensor
"""A number of equal bins, or the starts and stops of bins, (2, bins): disjoint and in increasing order."""


def pool(m: KernelMap, rows: PoolBins, cols: PoolBins, gain: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights of a map, pooled to rows × cols bins.

    `gain` (B, H, S), if given, multiplies the weights of each key.
    Returns two tensors (B, H, rows, cols) in float32: the mass (summed over the keys of a bin, averaged over
    its queries) and the peak (the entry of largest magnitude, with its sign). The edges of equal bins are
    floor(i · T / rows) and floor(j · S / cols).
    """
    # Asked on the host: an unsigned pool needs no trough, which is a third of the stores.
    signed = gain is not None and bool((gain < 0).any())
    gain = None if gain is None else gain.float().contiguous()
    T, S = m.matrix[2:]
    bounds = _bounds(T, rows), _bounds(S, cols)
    (width,) = padded(m.q.shape[-1])
    purpose = "pool"
    config = configs.choose(purpose, width, m.q.dtype)
    across = _fill_blocks(S, bounds[1], config.cols)
    if across is not None and across.parts > 1:
        purpose = "wide pool"
        config = configs.choose(purpose, width, m.q.dtype)
        across = _fill_blocks(S, bounds[1], config.cols)
    down = _fill_blocks(T, bounds[0], config.rows)
    if down is None or across is None:
        mass, peak, *trough = pool_spans(m, *bounds, gain, signed)
    else:
        mass, peak, *trough = _pool_blocks(m, down, across, gain, signed, purpose)
    return mass, torch.where(trough[0] > peak, -trough[0], peak) if trough else peak


def summary(
    m: KernelMap, first_position: int, rows: PoolBins, cols: PoolBins
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Mass and peak as `pool` returns them and the `row_reductions.statistics`, from one pass.

    None where the bins do not fill whole blocks.
    """
    (width,) = padded(m.q.shape[-1])
    config = configs.choose("statistics", width, m.q.dtype)
    T, S = m.matrix[2:]
    down = _fill_blocks(T, _bounds(T, rows), config.rows)
    across = _fill_blocks(S, _bounds(S, cols), config.cols)
    if down is None or across is None:
        return None
    parts = 1 if m.scores().band is None else across.parts  # as in `_pool_blocks`
    cells = _empty_cells(m, down, across, parts, 2)
    arguments = CellArguments(cells[0], cells[1], 1 / down.size, down.in_block, across.in_block, parts)
    found = statistics(m, first_position, arguments)
    mass, peak = _join(cells, down, across, parts)
    return mass, peak, *found


class EqualBins(NamedTuple):
    """Equal bins of one axis that fill whole blocks: several to a block, or several blocks to a bin."""

    number: int
    size: int  # indices in a bin
    in_block: int  # bins in a block, or 1
    parts: int  # blocks in a bin, or 1


def _fill_blocks(length: int, bounds: Tensor, block: int) -> EqualBins | None:
    """The bins of `length` indices for blocks of `block`; None if a block would straddle two bins."""
    sizes = bounds[1] - bounds[0]
    number, longest = len(sizes), int(sizes.max())
    room = min(block, 1 << (longest - 1).bit_length())  # the indices of a bin in its block
    if number * longest != length or longest % room:
        return None
    return EqualBins(number, longest, block // room, longest // room)


def _bounds(length: int, bins: PoolBins) -> Tensor:
    """The starts and stops (2, bins) of bins, on the CPU."""
    if isinstance(bins, Tensor):
        return bins.cpu()
    edges = torch.arange(bins + 1, device="cpu") * length // bins
    return torch.stack([edges[:-1], edges[1:]])


def _empty_cells(m: KernelMap, down: EqualBins, across: EqualBins, parts: int, count: int) -> Tensor:
    """Zeros for mass and peak, and with a `count` of 3 trough, of all bins in parts: (count, B, H, …, …)."""
    shape = count, *m.matrix[:2], down.number * down.parts, across.number * across.parts // parts
    return torch.zeros(shape, dtype=torch.float32, device=m.q.device)


def _pool_blocks(
    m: KernelMap,
    down: EqualBins,
    across: EqualBins,
    gain: Tensor | None,
    signed: bool,
    purpose: str,
) -> list[Tensor]:
    """The mass, the peak and, of a `signed` pool, the trough of bins that fill whole blocks."""
    from regard.attention.backends.triton.pool_kernel import pool_kernel

    # Lists, of masks that are no bands, hold blocks in no order of keys: parts are joined afterwards.
    parts = 1 if m.scores().band is None else across.parts
    cells = _empty_cells(m, down, across, parts, 3 if signed else 2)
    outputs = cells[0], cells[1], cells[2] if signed else None
    constants = down.in_block, across.in_block, parts
    launch_on_rows(
        pool_kernel, purpose, m, (*outputs, 1 / down.size, gain), tuple(cells.shape[3:]), constants
    )
    return _join(cells, down, across, parts)


def _join(cells: Tensor, down: EqualBins, across: EqualBins, parts: int) -> list[Tensor]:
    """Join the mass, peak and trough of parts to bins; the kernel has joined `parts` blocks of keys."""
    by_part = cells.unflatten(-1, (across.number, -1)).unflatten(-3, (down.number, -1))  # type: ignore[no-untyped-call]
    if by_part.shape[-3] == by_part.shape[-1] == 1:
        return list(cells)
    return [by_part[0].sum((-3, -1)), *by_part[1:].amax((-3, -1))]
