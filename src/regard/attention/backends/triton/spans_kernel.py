"""Pools the attention matrix over unequal bins in Triton, in three steps, each with its kernel.

A bin of queries is cut into runs that fill a fraction of a block, a bin of keys at the edges of blocks into
fragments. The first kernel visits the tiles, as `pool_kernel` does, and reduces each over the queries of a
run: what is left is a number for each key and run. The second reduces those over the keys of a fragment, and
the third joins runs and fragments to bins. Sums are added in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
    LOG2E,
    block_at,
    gather_rows,
    in_band,
    list_of,
    load_block,
    load_levels,
    program_block,
    scored,
    tile_bits,
)


@triton.jit(do_not_specialize=["blocks", "entries", "first_head"])
def runs_kernel(
    q, k, k_tma, lse, buffer, gain, slopes, lists, band, places,
    q_step, k_step, heads, group, T, S, factor, cap, blocks, entries, first_head,
    KINDS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    RUNS: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sum and the largest entry of each key and each of the RUNS runs of a block of queries.

    places (blocks, ROWS) has the query in each place of a block, or ~n where a copy of query n fills it.
    buffer (heads of this launch, entries, KINDS, RUNS, COLS) has room for each entry of the lists of a head.
    Of three KINDS, the second is how far the highest entry is above 0 and the third how far the lowest is
    below. BITS says that the lists have tiles of what is visible in partial blocks; otherwise the band says
    it.
    """
    block, head, b, h, g = program_block(blocks, heads, group, first_head=first_head)
    k += b * k_step[0] + g * k_step[1]
    place = tl.load(places + block * ROWS + tl.arange(0, ROWS))
    real = place >= 0
    row = tl.where(real, place, -1 - place)
    query = gather_rows(q + b * q_step[0] + h * q_step[1], q_step, row, D, D_PAD)
    level = load_levels(lse + head * T, row, real)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E
    if gain is not None:
        gain += head * S

    full, partial, last = list_of(lists, b, h, block)
    first_of_head = tl.load(lists.first + b * lists.batch_step + h * lists.head_step)
    at = buffer + ((head - first_head) * entries + full - first_of_head) * (KINDS * COLS * RUNS)
    at = _past_keys(
        at, query, level, gain, k, k_tma, lists, band, k_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S,
        factor, cap, slope, full, partial, False, KINDS, D, D_PAD, ROWS, COLS, RUNS, BITS, PRECISION,
    )  # fmt: skip
    _past_keys(
        at, query, level, gain, k, k_tma, lists, band, k_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S,
        factor, cap, slope, partial, last, True, KINDS, D, D_PAD, ROWS, COLS, RUNS, BITS, PRECISION,
    )  # fmt: skip


@triton.jit
def _past_keys(
    at, query, level, gain, k, k_tma, lists, band, k_step, b, g, position, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, KINDS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, RUNS: tl.constexpr, BITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    inner = tl.arange(0, COLS)[:, None] + tl.arange(0, RUNS)[None, :] * COLS
    block = block_at(lists, start, start, stop)
    for i in tl.range(start, stop):
        following = block_at(lists, i + 1, start, stop)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)  # (COLS, D)
        allowed = None
        if PARTIAL and BITS:  # loaded before tl.dot, which hides the latency of memory
            allowed = tile_bits(lists, i, ROWS, COLS, True)

        # Turned, so that a run of queries lies inside one thread of a tensor core's result.
        product = tl.dot(keys, query.T, input_precision=PRECISION)  # (COLS, ROWS)
        score = scored(product, factor, cap, slope, position[None, :], key[:, None])
        weight = tl.exp2(score - level[None, :])
        if PARTIAL:
            if not BITS:
                allowed = in_band(position[None, :], key[:, None], S, band)
            weight = tl.where(allowed, weight, 0.0)
        if gain is not None:
            weight *= tl.load(gain + key, mask=key < S, other=0.0)[:, None]

        tl.store(at + inner, _sum_of_runs(weight, ROWS, COLS, RUNS))
        if KINDS == 2:
            tl.store(at + COLS * RUNS + inner, _max_of_runs(weight, ROWS, COLS, RUNS))
        else:
            above, below = tl.where(weight < 0, 0.0, weight), tl.where(weight > 0, 0.0, -weight)
            tl.store(at + COLS * RUNS + inner, _max_of_runs(above, ROWS, COLS, RUNS))
            tl.store(at + 2 * COLS * RUNS + inner, _max_of_runs(below, ROWS, COLS, RUNS))
        at += KINDS * COLS * RUNS
        block = following
    return at


@triton.jit
def _sum_of_runs(tile, ROWS: tl.constexpr, COLS: tl.constexpr, RUNS: tl.constexpr):
    """The sum over the queries of each run of a tile (COLS, ROWS): (COLS, RUNS)."""
    if RUNS >= 4 and ROWS > RUNS:  # the order of places that `spans` gives to such runs
        parts = tile.reshape(COLS, RUNS // 4, ROWS // RUNS // 2, 4, 2)
        return tl.sum(tl.sum(parts, 4), 2).reshape(COLS, RUNS)
    else:
        return tl.sum(tile.reshape(COLS, RUNS, ROWS // RUNS), 2)


@triton.jit
def _max_of_runs(tile, ROWS: tl.constexpr, COLS: tl.constexpr, RUNS: tl.constexpr):
    """The largest over the queries of each run of a tile without negative entries, as its bits."""
    bits = tile.to(tl.int32, bitcast=True)  # floats above 0 sort as their bits do, and NaN is the largest
    if RUNS >= 4 and ROWS > RUNS:
        parts = bits.reshape(COLS, RUNS // 4, ROWS // RUNS // 2, 4, 2)
        most = tl.max(tl.max(parts, 4), 2).reshape(COLS, RUNS)
    else:
        most = tl.max(bits.reshape(COLS, RUNS, ROWS // RUNS), 2)
    return most.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["blocks", "entries", "first_head", "runs", "fragments", "cell_step"])
def fragments_kernel(
    buffer, cells, lists, row_blocks, slots, fragment_of,
    heads, blocks, entries, first_head, runs, fragments, cell_step,
    KINDS: tl.constexpr, COLS: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Reduce what `runs_kernel` stored for one entry of the lists of a head over the keys of each fragment.

    row_blocks (entries of all lists,) has the block of queries of each entry. slots (blocks, RUNS) has the
    row of cells for each run, or −1, and fragment_of the column for each key, or −1. cells (KINDS, heads,
    runs, fragments) begins as zeros; cell_step is the size of a kind.
    """
    number, own_head = tl.program_id(0), tl.program_id(1)
    head = (first_head + own_head).to(tl.int64)
    of_head = lists.first + head // heads * lists.batch_step + head % heads * lists.head_step
    entry = tl.load(of_head) + number
    if entry < tl.load(of_head + blocks):
        key = tl.arange(0, COLS)
        of_key = fragment_of + tl.load(lists.block + entry) * COLS + key
        fragment = tl.load(of_key)
        first = fragment != tl.load(of_key - 1, mask=key > 0, other=-2)
        last = fragment != tl.load(of_key + 1, mask=key < COLS - 1, other=-2)
        first = tl.broadcast_to(first.to(tl.int32)[None, :], [RUNS, COLS])

        run = tl.arange(0, RUNS)
        slot = tl.load(slots + tl.load(row_blocks + entry) * RUNS + run)
        cell = cells + (head * runs + slot)[:, None] * fragments + fragment[None, :]
        wanted = (slot >= 0)[:, None] & (last & (fragment >= 0))[None, :]
        at = buffer + (own_head.to(tl.int64) * entries + number) * (KINDS * RUNS * COLS)
        at += run[:, None] * COLS + key[None, :]
        highest = tl.load(at + RUNS * COLS).to(tl.int32, bitcast=True)
        _, total, highest = tl.associative_scan((first, tl.load(at), highest), 1, _continue)
        tl.store(cell, total, mask=wanted)
        tl.store(cell + cell_step, highest.to(tl.float32, bitcast=True), mask=wanted)
        if KINDS == 3:
            below = tl.load(at + 2 * RUNS * COLS)
            lowest = below.to(tl.int32, bitcast=True)
            _, _, lowest = tl.associative_scan((first, below, lowest), 1, _continue)
            tl.store(cell + 2 * cell_step, lowest.to(tl.float32, bitcast=True), mask=wanted)


@triton.jit
def _continue(first, total, most, next_first, next_total, next_most):
    """Sum and maximum of what stands in a fragment before a key, with those of what follows."""
    total = tl.where(next_first != 0, next_total, total + next_total)
    most = tl.where(next_first != 0, next_most, tl.maximum(most, next_most))
    return first | next_first, total, most


@triton.jit(do_not_specialize=["rows", "cols", "bins", "sums"])
def join_kernel(
    x, joined, first, share, rows, cols, bins, sums, BINS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Join the rows of matrices x (…, rows, cols) to bins, turned: (…, cols, bins).

    Rows first[n] to first[n + 1] make up bin n. Of the first `sums` matrices the sum is taken, times the
    share of each bin if there is one; of the others, which have no negative entries, the maximum.
    """
    matrix = tl.program_id(0).to(tl.int64)
    bin = tl.program_id(1) * BINS + tl.arange(0, BINS)
    col = tl.program_id(2) * COLS + tl.arange(0, COLS)
    start = tl.load(first + bin, mask=bin < bins, other=0)
    count = tl.load(first + bin + 1, mask=bin < bins, other=0) - start
    at = x + matrix * rows * cols + start[:, None].to(tl.int64) * cols + col[None, :]
    total, most = tl.zeros([BINS, COLS], tl.float32), tl.zeros([BINS, COLS], tl.int32)
    for i in tl.range(0, tl.max(count)):
        value = tl.load(at, mask=(i < count)[:, None] & (col < cols)[None, :], other=0.0)
        total += value
        most = tl.maximum(most, value.to(tl.int32, bitcast=True))
        at += cols
    if share is not None:
        total *= tl.load(share + bin, mask=bin < bins, other=0.0)[:, None]
    result = tl.where(matrix < sums, total, most.to(tl.float32, bitcast=True))
    at = joined + matrix * cols * bins + col[None, :].to(tl.int64) * bins + bin[:, None]
    tl.store(at, result, mask=(bin < bins)[:, None] & (col < cols)[None, :])
