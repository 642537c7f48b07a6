"""Launches the Triton kernels that pool an attention matrix over unequal bins, such as the words of a text.

See `spans_kernel` for the three steps. This file cuts the bins, finds the blocks that have to be visited, and
sends some heads at a time through the buffer between the first two steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.runs import cut_into_runs
from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import KernelMap, KernelScores, descriptor, padded
from regard.attention.masks.block_lists import (
    BlockLists,
    cut_into_blocks,
    find_bounded_blocks,
    find_visible_blocks,
)
from regard.attention.masks.grid import Band
from regard.attention.masks.memo import memoize_on_mask
from regard.support.lru import LRUCache

MAX_BUFFER = 1 << 29
"""How many numbers of float32 the buffer holds: fewer take more launches, whose ends leave the GPU idle."""
MAX_CUTS = 16  # that are cached: moving one to a GPU makes the host wait for what runs there


class Layout(NamedTuple):
    """Runs of one width, laid out in blocks of queries."""

    places: (
        Tensor  # (blocks, rows of a block) the query in each place, or ~n where a copy of query n fills it
    )
    slots: Tensor  # (blocks, runs of a block) the number of each run among all, or −1


class Cuts(NamedTuple):
    """The bins of both axes, cut into runs of queries and fragments of keys. A bin's own are consecutive."""

    layouts: list[Layout]
    runs: int
    first_run: Tensor  # (bins + 1,)
    share: Tensor  # (bins,) 1 / the number of queries
    key_blocks: Tensor  # (blocks,) the blocks of keys that bins reach into
    fragments: int
    fragment_of: Tensor  # (keys of all blocks,) the fragment that a key is in, or −1
    first_fragment: Tensor  # (bins + 1,)


class Visits(NamedTuple):
    """The blocks of keys that the blocks of queries of a layout have to visit."""

    lists: BlockLists
    row_blocks: Tensor  # (entries,) the block of queries that visits
    most: int  # entries of a head


def pool_spans(
    m: KernelMap, rows: Tensor, cols: Tensor, gain: Tensor | None, signed: bool
) -> tuple[Tensor, Tensor, *tuple[Tensor, ...]]:
    """The mass, the peak and, of a `signed` pool, the trough of bins, whose starts and stops are (2, bins).

    The peak of a signed pool is how far the highest entry is above 0, the trough how far the lowest is below.
    """
    (width,) = padded(m.q.shape[-1])
    config, device = configs.choose("spans", width, m.q.dtype), m.q.device
    S = m.matrix[3]
    key = (S, *(tuple(x.flatten().tolist()) for x in (rows, cols)), config, device)
    cuts = _cuts.get(key, lambda: _cut(S, rows, cols, config, device))
    scores = m.scores()
    visits = memoize_on_mask(
        scores.mask,
        (m.matrix, key),
        lambda: [_visit(m, scores, cuts, layout, config) for layout in cuts.layouts],
    )
    (B, H), kinds = m.matrix[:2], 3 if signed else 2
    cells = torch.zeros(kinds, B * H, cuts.runs, cuts.fragments, dtype=torch.float32, device=device)
    # Triton launches on the current device.
    with torch.cuda.device_of(cells):  # type: ignore[no-untyped-call]
        for layout, of_layout in zip(cuts.layouts, visits, strict=True):
            _fill(m, scores, cuts, layout, of_layout, gain, cells, config)
        turned = _join(cells, cuts.first_run, cuts.share)
        joined = _join(turned, cuts.first_fragment, None)
    mass, peak, *trough = joined.unflatten(1, (B, H))  # type: ignore[no-untyped-call]
    return mass, peak, *trough


_cuts: LRUCache[Cuts] = LRUCache(MAX_CUTS)


def _cut(S: int, rows: Tensor, cols: Tensor, config: configs.KernelConfig, device: torch.device) -> Cuts:
    (starts, stops), sizes = rows, rows[1] - rows[0]
    # Runs as long as the span that the average position is in: longer ones leave more gaps (1.3 places a
    # position where spans have 1 to 31, against 1.15), and shorter ones need more cells.
    typical = int((sizes * sizes).sum()) // max(int(sizes.sum()), 1)
    groups = cut_into_runs(starts, stops, min(config.rows, 1 << max(typical.bit_length() - 1, 0)))
    span_of_run = torch.cat([group.spans for group in groups])
    rank = span_of_run.argsort(stable=True).argsort()
    slots = torch.split(rank, [len(group.spans) for group in groups])
    layouts = [_lay_out(group.places, own, config.rows) for group, own in zip(groups, slots, strict=True)]

    # Keys in order; a fragment begins where a span or a block does.
    per_span = cols[1] - cols[0]
    spans = torch.arange(cols.shape[1], device="cpu").repeat_interleave(per_span)
    keys = cols[0][spans] + torch.arange(len(spans), device="cpu") - (per_span.cumsum(0) - per_span)[spans]
    begins = (keys == cols[0][spans]) | (keys % config.cols == 0)
    fragment_of = torch.full((-(-S // config.cols) * config.cols,), -1, dtype=torch.int32, device="cpu")
    fragment_of[keys] = begins.cumsum(0).int() - 1
    return Cuts(
        [Layout(places.int().to(device), slots.int().to(device)) for places, slots in layouts],
        len(span_of_run),
        _firsts(torch.bincount(span_of_run, minlength=len(sizes))).to(device),
        (1 / sizes).to(device),
        torch.unique(keys // config.cols).to(device),
        int(begins.sum()),
        fragment_of.to(device),
        _firsts(torch.bincount(spans[begins], minlength=cols.shape[1])).to(device),
    )


def _lay_out(places: Tensor, slots: Tensor, size: int) -> Layout:
    """The queries (runs, width) and the numbers (runs,) of runs, laid out in blocks of `size` places."""
    width = places.shape[1]
    runs = size // width
    missing = -len(places) % runs
    places, slots = pad(places, (0, 0, 0, missing), value=-1).flatten(), pad(slots, (0, missing), value=-1)
    places = places.where(places >= 0, ~places.cummax(0).values)
    if runs >= 4 and width > 1:
        # Each thread of a tensor core's result holds two neighbours of every eight: a run lies inside one.
        # The first and the last place keep theirs, so that a block still begins and ends with them.
        places = places.view(-1, runs // 4, 4, width // 2, 2).transpose(2, 3)
    return Layout(places.reshape(-1, size), slots.view(-1, runs))


def _firsts(counts: Tensor) -> Tensor:
    """Where each of several consecutive ranges begins, and the last ends."""
    return pad(counts.cumsum(0), (1, 0)).int()


def _visit(
    m: KernelMap, scores: KernelScores, cuts: Cuts, layout: Layout, config: configs.KernelConfig
) -> Visits:
    """What a layout has to visit. Under a band the kernel itself finds what is visible in a block."""
    rows = torch.where(layout.places < 0, ~layout.places, layout.places).long()
    cols, exist = (x[cuts.key_blocks] for x in cut_into_blocks(m.matrix[3], config.cols, rows.device))
    find = find_visible_blocks if scores.band is None else find_bounded_blocks
    blocks = find(scores.mask, m.matrix, rows, cols, exist)
    lists, R = blocks.by_row, blocks.sizes[2]
    counts = lists.first.diff()
    row_blocks = (torch.arange(len(counts), device=rows.device) % R).repeat_interleave(counts).int()
    numbered = cuts.key_blocks[lists.block.long()].int()
    return Visits(lists._replace(block=numbered), row_blocks, int(lists.first[::R].diff().max()))


def _fill(
    m: KernelMap,
    scores: KernelScores,
    cuts: Cuts,
    layout: Layout,
    visits: Visits,
    gain: Tensor | None,
    cells: Tensor,
    config: configs.KernelConfig,
) -> None:
    """Fill the cells (kinds, B · H, runs, fragments) of a layout."""
    from regard.attention.backends.triton.spans_kernel import fragments_kernel, runs_kernel

    (B, H, T, S), q, k = m.matrix, m.signed_q(), m.k
    lists, row_blocks, entries = visits
    kinds = len(cells)
    blocks, in_block = layout.slots.shape
    (width,), cols = padded(q.shape[-1]), config.cols
    per_head = entries * kinds * cols * in_block
    if per_head == 0:  # nothing is visible
        return
    launches = -(-B * H // max(1, MAX_BUFFER // per_head))
    at_once = -(-B * H // launches)
    buffer = torch.empty(at_once * per_head, dtype=torch.float32, device=q.device)
    for first in range(0, B * H, at_once):
        heads = min(at_once, B * H - first)
        runs_kernel[(blocks * heads,)](
            q, k, descriptor(k, config.tma, cols, width), m.lse.contiguous(), buffer, gain,
            scores.slopes, lists, scores.band or Band(), layout.places,
            q.stride(), k.stride(), H, m.group, T, S, scores.factor, scores.cap, blocks, entries, first,
            kinds, q.shape[-1], width, config.rows, cols, in_block, scores.band is None, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
        fragments_kernel[(entries, heads)](
            buffer, cells, lists, row_blocks, layout.slots, cuts.fragment_of,
            H, blocks, entries, first, cuts.runs, cuts.fragments, cells.stride(0), kinds, cols, in_block,
            num_warps=max(1, cols * in_block // 512),
        )  # fmt: skip


def _join(x: Tensor, first: Tensor, share: Tensor | None) -> Tensor:
    """Join the rows of x (kinds, B · H, rows, cols) to bins, turned: (kinds, B · H, cols, bins)."""
    from regard.attention.backends.triton.spans_kernel import join_kernel

    kinds, heads, rows, cols = x.shape
    bins = len(first) - 1
    joined = x.new_empty(kinds, heads, cols, bins)
    join_kernel[(kinds * heads, -(-bins // 32), -(-cols // 64))](
        x, joined, first, share, rows, cols, bins, heads, 32, 64
    )
    return joined
