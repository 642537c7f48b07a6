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

from regard.attention.backends.runs import cut_into_runs, join_runs_
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
    if _side(S, cols, config.cols, device).layouts[0].parts > 1:
        config = configs.choose("wide pool", width, m.q.dtype)
    down, across = _side(T, rows, config.rows, device), _side(S, cols, config.cols, device)
    pairs = list(product(down.layouts, across.layouts))
    lists: list[BlockLists | None] = [None]
    # Bins laid out with gaps need lists even for a band: the arithmetic of blocks assumes that place n is
    # index n.
    if scores.band is None or down.has_gaps or across.has_gaps:
        lists = memoize_on_mask(
            scores.mask,
            (m.matrix, _key(rows), _key(cols), config, device),
            lambda: [_visit(scores.mask, scores.band, m.matrix, *pair, device) for pair in pairs],
        )
    # Lists hold blocks in no order of keys, so the parts of a bin are combined afterwards.
    parts = across.layouts[0].parts if lists[0] is None else 1
    cells = _empty_cells(m, down, across, parts, 3 if signed else 2)
    gain = None if gain is None else gain.float().contiguous()
    for pair, visits in zip(pairs, lists, strict=True):
        _launch(m, scores, visits, *pair, parts, config, 1 / down.sizes, gain, cells, width)
    mass, peak, *trough = _join(cells, down, across, parts)
    return mass, torch.where(trough[0] > peak, -trough[0], peak) if trough else peak


def summary(
    m: KernelMap, first_position: int, rows: PoolBins, cols: PoolBins
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Mass and peak as `pool` returns them and the `row_kernels.statistics`, from one pass.

    None where the bins do not fill whole blocks.
    """
    (width,) = padded(m.q.shape[-1])
    config = configs.choose("statistics", width, m.q.dtype)
    down = _side(m.matrix[2], rows, config.rows, m.q.device)
    across = _side(m.matrix[3], cols, config.cols, m.q.device)
    if down.has_gaps or across.has_gaps:
        return None
    (row_layout,), (col_layout,) = down.layouts, across.layouts
    parts = 1 if m.scores().band is None else col_layout.parts  # as in `pool`
    cells = _empty_cells(m, down, across, parts, 2)
    share = (1 / down.sizes)[row_layout.spans]
    arguments = CellArguments(cells[0], cells[1], share, row_layout.bins, col_layout.bins, parts)
    found = statistics(m, first_position, arguments)
    mass, peak = _join(cells, down, across, parts)
    return mass, peak, *found


class Layout(NamedTuple):
    """How bins of one axis lie in blocks: several runs to a block, or several blocks to a bin."""

    spans: Tensor  # (runs,) the bin of each run
    bins: int  # runs in a block
    parts: int  # blocks in a bin, where place n holds index n
    size: int  # places in a block
    places: Tensor | None = None  # the index in each place, −1 for a gap; None: place n holds index n
    slots: Tensor | None = None  # (runs of whole blocks,) the slot of each run, −1 for none; None: run n is n

    def blocks(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The indices in each block (blocks, size), gaps filled with a neighbour, and which exist."""
        if self.places is None:
            return cut_into_blocks(length, self.size, device)
        index = self.places.view(-1, self.size).long()
        return index.cummax(-1).values.clamp(min=0), index >= 0


class Side(NamedTuple):
    """The bins of one axis. Each run of a layout has a slot of its own along that axis of the cells.

    Where bins are laid out with gaps, the first run of a bin has the bin's number, and the slots of further
    runs of long bins come after them. So all layouts fill the same cells.
    """

    layouts: list[Layout]
    sizes: Tensor  # (bins,)
    further: Tensor  # (slots − bins,) the bin of each further run

    @property
    def has_gaps(self) -> bool:
        """Whether bins are laid out with gaps."""
        return self.layouts[0].places is not None

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self.sizes) + len(self.further) if self.has_gaps else len(self.layouts[0].spans)

    def join(self, x: Tensor, dim: int, parts: int, reduce: Literal["sum", "amax"]) -> Tensor:
        """Join the slots along an axis of x to bins; without gaps, `parts` slots in order are a bin."""
        if self.has_gaps:
            joined, further = x.movedim(dim, 0).tensor_split([len(self.sizes)])
            return join_runs_(joined, further, self.further, reduce).movedim(0, dim)
        if parts == 1:
            return x
        by_part: Tensor = x.movedim(dim, -1).unflatten(-1, (-1, parts))  # type: ignore[no-untyped-call]
        return (by_part.sum(-1) if reduce == "sum" else by_part.amax(-1)).movedim(-1, dim)


def _empty_cells(m: KernelMap, down: Side, across: Side, parts: int, count: int) -> Tensor:
    """Zeros for mass and peak, and with a `count` of 3 trough, of all slots: (count, B, H, slots, slots)."""
    shape = count, *m.matrix[:2], down.slots, across.slots // parts
    return torch.zeros(shape, dtype=torch.float32, device=m.q.device)


def _join(cells: Tensor, down: Side, across: Side, parts: int) -> list[Tensor]:
    """Join the mass, peak and trough of slots to bins; the kernel has joined `parts` blocks of keys."""
    joined = []
    for x, reduce in zip(cells, REDUCTIONS, strict=False):
        x = down.join(x, -2, down.layouts[0].parts, reduce)
        joined.append(across.join(x, -1, across.layouts[0].parts // parts, reduce).contiguous())
    return joined


_sides: LRUCache[Side] = LRUCache(MAX_SIDES)


def _side(length: int, bins: PoolBins, block: int, device: torch.device) -> Side:
    """The bins of `length` indices for blocks of `block` places, cached."""
    return _sides.get((length, _key(bins), block, device), lambda: _lay_out(length, bins, block, device))


def _lay_out(length: int, bins: PoolBins, block: int, device: torch.device) -> Side:
    starts, stops = _bounds(length, bins)
    sizes = stops - starts
    count, longest = len(sizes), int(sizes.max())
    room = min(block, 1 << (longest - 1).bit_length())  # the places of a bin in its block
    parts = -(-longest // room)
    # Only if all bins are equal and fill whole blocks: otherwise a block would straddle two bins.
    if count * longest == length and longest == room * parts:
        runs = torch.arange(count, device=device).repeat_interleave(parts)
        return Side([Layout(runs, block // room, parts, block)], sizes.to(device), runs[:0])
    # Runs as long as the span that the average position is in: longer ones leave more gaps (1.3 places a
    # position where spans have 1 to 31, against 1.15), and shorter ones need more slots.
    typical = int((sizes * sizes).sum()) // max(int(sizes.sum()), 1)
    layouts, further, used = [], [starts[:0]], torch.zeros(count, dtype=torch.bool, device="cpu")
    for group in cut_into_runs(starts, stops, min(block, 1 << max(typical.bit_length() - 1, 0))):
        slots, again = group.spans.clone(), used[group.spans]
        again[1:] |= slots[1:] == slots[:-1]
        slots[again] = count + sum(map(len, further)) + torch.arange(int(again.sum()), device="cpu")
        further.append(group.spans[again])
        used[group.spans] = True
        per_block = block // group.places.shape[1]
        slots, places = _fill(slots, per_block).int(), _fill(group.places.flatten(), block).int()
        tensors = (x.to(device) for x in (places, slots))
        layouts.append(Layout(group.spans.to(device), per_block, 1, block, *tensors))
    return Side(layouts, sizes.to(device), torch.cat(further).to(device))


def _fill(x: Tensor, size: int) -> Tensor:
    """x (n,) with −1 after it, up to a multiple of `size`."""
    return torch.cat([x, x.new_full((-len(x) % size,), -1)])


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
        return find_visible_blocks(mask, shape, *blocks).by_row
    return find_bounded_blocks(mask, shape, *blocks).by_row


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
    cells: Tensor,
    width: int,
) -> None:
    """Fill the slots of two layouts with mass, peak and, if `cells` has room, trough.

    `parts` blocks of keys are joined by the kernel.
    """
    from regard.attention.backends.triton.pool_kernel import pool_kernel

    (B, H, T, S), q, k = m.matrix, m.signed_q(), m.k
    bin_rows = len(down.spans)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        pool_kernel[(-(-bin_rows // down.bins) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), m.lse.contiguous(), cells[0], cells[1],
            cells[2] if len(cells) > 2 else None, share[down.spans], gain,
            scores.slopes, lists, scores.band or Band(), down.places, across.places, down.slots, across.slots,
            q.stride(), k.stride(), H, m.group, T, S, scores.factor, scores.cap, bin_rows, *cells.shape[3:],
            q.shape[-1], width, config.rows, config.cols, down.bins, across.bins, parts, scores.band is None,
            configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
