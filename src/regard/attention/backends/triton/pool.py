"""Launches the Triton kernel that pools an attention matrix: how bins become blocks, and back.

A kernel works on blocks whose size is a power of two. Equal bins that fill such blocks are used as they are;
others (1,000 queries in 7 bins, or the words of a text) are cut into runs and laid out with gaps, so that
each run begins at a block or a fraction of one. Runs of each width are a launch of their own.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.runs import cut_into_runs, join_runs
from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import (
    KernelMap,
    KernelScores,
    descriptor,
    padded,
)
from regard.attention.backends.triton.row_kernels import CellArguments, statistics
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask
from regard.attention.masks.block_lists import (
    BlockLists,
    cut_into_blocks,
    find_bounded_blocks,
    find_visible_blocks,
)
from regard.attention.masks.memo import memoize_on_mask
from regard.support.lru import LRUCache

REDUCTIONS: tuple[Literal["sum", "amax"], ...] = ("sum", "amax", "amax")  # of the mass, peak and trough
MAX_SIDES = 32  # that are cached: moving one to a GPU makes the host wait for what runs there
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
    (T, S), device = m.matrix[2:], m.q.device
    scores = m.scores()
    (width,) = padded(m.q.shape[-1])
    config = configs.choose("pool", width, m.q.dtype)
    if _side(S, cols, config.cols, device)[0][0].parts > 1:
        config = configs.choose("wide pool", width, m.q.dtype)
    down, sizes = _side(T, rows, config.rows, device)
    across, widths = _side(S, cols, config.cols, device)
    lists: list[BlockLists | None] = [None]
    # Bins laid out with gaps need lists even for a band: the arithmetic of blocks assumes that place n is
    # index n.
    if scores.band is None or down[0].places is not None or across[0].places is not None:
        lists = memoize_on_mask(
            scores.mask,
            (m.matrix, _key(rows), _key(cols), config, device),
            lambda: [
                _visit(scores.mask, scores.band, m.matrix, row_layout, col_layout, device)
                for row_layout, col_layout in product(down, across)
            ],
        )
    counts = len(sizes), len(widths)
    pooled: list[Tensor] = []
    for (row_layout, col_layout), visits in zip(product(down, across), lists, strict=True):
        # Lists hold blocks in no order of keys, so the parts of a bin are combined afterwards.
        parts = col_layout.parts if visits is None else 1
        cells = _launch(
            m, scores, visits, row_layout, col_layout, parts, config, 1 / sizes, gain, signed, width
        )
        joined = _join(cells, row_layout, col_layout, parts, counts)
        # A bin is in one layout; the others have 0 for it.
        pooled = [a.add_(b) for a, b in zip(pooled, joined, strict=True)] if pooled else joined
    mass, peak, *trough = pooled
    return mass, torch.where(trough[0] > peak, -trough[0], peak) if trough else peak


def summary(
    m: KernelMap, first_position: int, rows: PoolBins, cols: PoolBins
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Mass and peak as `pool` returns them and the `row_kernels.statistics`, from one pass.

    None where the bins do not fill whole blocks.
    """
    (width,) = padded(m.q.shape[-1])
    config = configs.choose("statistics", width, m.q.dtype)
    (down, *_), sizes = _side(m.matrix[2], rows, config.rows, m.q.device)
    (across, *_), widths = _side(m.matrix[3], cols, config.cols, m.q.device)
    if down.places is not None or across.places is not None:
        return None
    parts = 1 if m.scores().band is None else across.parts  # as in `pool`
    shape = len(down.spans), len(across.spans) // parts
    cells = torch.zeros(2, *m.matrix[:2], *shape, dtype=torch.float32, device=m.q.device)
    share = (1 / sizes)[down.spans]
    arguments = CellArguments(cells[0], cells[1], share, down.bins, across.bins, parts)
    found = statistics(m, first_position, arguments)
    mass, peak = _join(cells, down, across, parts, (len(sizes), len(widths)))
    return mass, peak, *found


class Layout(NamedTuple):
    """How bins of one axis lie in blocks: several runs to a block, or several blocks to a bin."""

    spans: Tensor  # (runs,) the bin of each run
    bins: int  # runs in a block
    parts: int  # blocks in a bin, where place n holds index n
    size: int  # places in a block
    places: Tensor | None  # the index in each place, −1 for a gap; None: place n holds index n

    def blocks(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The indices in each block (blocks, size), gaps filled with a neighbour, and which exist."""
        if self.places is None:
            return cut_into_blocks(length, self.size, device)
        index = self.places.view(-1, self.size).long()
        return index.cummax(-1).values.clamp(min=0), index >= 0

    def join(self, x: Tensor, dim: int, parts: int, count: int, reduce: Literal["sum", "amax"]) -> Tensor:
        """Join the runs along an axis of x to `count` bins; `parts` runs each where no place is a gap."""
        if self.places is not None:
            return join_runs(x.movedim(dim, 0), self.spans, count, reduce).movedim(0, dim)
        if parts == 1:
            return x
        by_part: Tensor = x.movedim(dim, -1).unflatten(-1, (count, parts))  # type: ignore[no-untyped-call]
        return (by_part.sum(-1) if reduce == "sum" else by_part.amax(-1)).movedim(-1, dim)


_sides: LRUCache[tuple[list[Layout], Tensor]] = LRUCache(MAX_SIDES)


def _join(cells: Tensor, down: Layout, across: Layout, parts: int, counts: tuple[int, int]) -> list[Tensor]:
    """Join the mass, peak and trough of runs to bins; the kernel has joined `parts` blocks of keys."""
    joined = []
    for part, reduce in zip(cells, REDUCTIONS, strict=False):
        by_row = down.join(part, -2, down.parts, counts[0], reduce)
        joined.append(across.join(by_row, -1, across.parts // parts, counts[1], reduce))
    return joined


def _side(length: int, bins: PoolBins, block: int, device: torch.device) -> tuple[list[Layout], Tensor]:
    """The layouts of bins of `length` indices and the size of each bin, cached."""

    def compute() -> tuple[list[Layout], Tensor]:
        return _layouts(length, bins, block, device), _bounds(length, bins).diff(dim=0)[0].to(device)

    return _sides.get((length, _key(bins), block, device), compute)


def _layouts(length: int, bins: PoolBins, block: int, device: torch.device) -> list[Layout]:
    """The layouts of bins of `length` indices, for blocks of `block` places: one for each width of runs."""
    starts, stops = _bounds(length, bins)
    count, longest = len(starts), int((stops - starts).max())
    room = min(block, 1 << (longest - 1).bit_length())  # the places of a bin in its block
    parts = -(-longest // room)
    # Only if all bins are equal and fill whole blocks: otherwise a block would straddle two bins.
    if count * longest == length and longest == room * parts:
        runs = torch.arange(count, device=device).repeat_interleave(parts)
        return [Layout(runs, block // room, parts, block, None)]
    layouts = []
    for group in cut_into_runs(starts, stops, block):
        places = group.places.flatten()
        gap = places.new_full((-len(places) % block,), -1)
        index = torch.cat([places, gap]).int().to(device)
        layouts.append(Layout(group.spans.to(device), block // group.places.shape[1], 1, block, index))
    return layouts


def _bounds(length: int, bins: PoolBins) -> Tensor:
    """The starts and stops (2, bins) of bins, on the CPU."""
    if isinstance(bins, Tensor):
        return bins.cpu()
    edges = torch.arange(bins + 1, device="cpu") * length // bins
    return torch.stack([edges[:-1], edges[1:]])


def _key(bins: PoolBins) -> int | tuple[int, ...]:
    """What tells bins apart."""
    return bins if isinstance(bins, int) else tuple(bins.flatten().tolist())


def _visit(
    mask: Mask,
    band: Band | None,
    shape: tuple[int, int, int, int],
    down: Layout,
    across: Layout,
    device: torch.device,
) -> BlockLists:
    """The key blocks of each query block. Under a band the kernel itself finds what is visible in them."""
    blocks = down.blocks(shape[2], device)[0], *across.blocks(shape[3], device)
    if band is None:
        return find_visible_blocks(mask, shape, *blocks).by_row()
    return find_bounded_blocks(mask, shape, *blocks).by_row()


def _launch(
    m: KernelMap,
    scores: KernelScores,
    lists: BlockLists | None,
    down: Layout,
    across: Layout,
    parts: int,
    config: configs.KernelConfig,
    share: Tensor,
    gain: Tensor | None,
    signed: bool,
    width: int,
) -> Tensor:
    """Mass and peak of every run, (2, B, H, runs, runs); `parts` blocks of keys are joined by the kernel.

    With a `signed` gain the trough comes third.
    """
    from regard.attention.backends.triton.pool_kernel import pool_kernel

    (B, H, T, S), q, k = m.matrix, m.signed_q(), m.k
    bin_rows, bin_cols = len(down.spans), len(across.spans) // parts
    cells = torch.zeros(3 if signed else 2, B, H, bin_rows, bin_cols, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        pool_kernel[(-(-bin_rows // down.bins) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), m.lse.contiguous(), cells[0], cells[1],
            cells[2] if signed else None,
            share[down.spans], None if gain is None else gain.float().contiguous(),
            scores.slopes, lists, scores.band or Band(), down.places, across.places,
            q.stride(), k.stride(), H, m.group, T, S, scores.factor, scores.cap, bin_rows, bin_cols,
            q.shape[-1], width, config.rows, config.cols, down.bins, across.bins, parts, scores.band is None,
            configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return cells
