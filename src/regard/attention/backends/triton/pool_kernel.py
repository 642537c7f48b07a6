"""Pools the attention matrix into bins in Triton, exactly and without the T×S matrix.

One program takes one block of queries past the key blocks it sees, as the forward pass does, but needs no
values and no running maximum: the row log-sum-exp is known, so a weight is one product and one exponential.
Sum and maximum over a bin are computed from the same tile.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
    LOG2E,
    load_block,
    load_levels,
    load_rows,
    program_block,
    scored,
    visible,
    visited_keys,
)


@triton.jit
def pool_kernel(
    q, k, k_tma, lse, mass, peak, trough, share, gain, slopes, lists, band,
    q_step, k_step, heads, group, T, S, factor, cap, bin_rows, bin_cols,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Mass and peak of the bins of a block.

    A block holds ROW_BINS × COL_BINS bins, or a bin is PARTS blocks wide.

    share is 1 / the number of queries in a bin. gain multiplies the weights of each key of each head. trough,
    which a gain below 0 needs, is how far the lowest entry of a bin is below 0; peak is then how far the
    highest is above. mass has bin_rows × bin_cols.
    """
    block, head, b, h, g = program_block(tl.cdiv(bin_rows, ROW_BINS), heads, group)
    k += b * k_step[0] + g * k_step[1]
    q += b * q_step[0] + h * q_step[1]

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    real = row < T
    query = load_rows(q, q_step, first_row, real, D, ROWS, D_PAD)
    if gain is not None:
        gain += head * S
    level = load_levels(lse + head * T, row, real)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    row_bin = block * ROW_BINS + tl.arange(0, ROW_BINS)
    inside = row_bin < bin_rows
    at = (head * bin_rows + row_bin) * bin_cols  # (ROW_BINS,)
    mass += at
    peak += at
    if trough is not None:
        trough += at

    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)

    # Where a bin is PARTS blocks wide, tiles of sums and of maxima are kept until it ends.
    sums, peaks, troughs = _empty(ROWS, COLS), _empty(ROWS, COLS), _empty(ROWS, COLS)
    for part in tl.static_range(3):
        start, stop = edges[part], edges[part + 1]
        if part != 0 or (lists is None and band.behind is not None):
            sums, peaks, troughs = _past_keys(
                sums, peaks, troughs, query, level, share, inside, mass, peak, trough, gain, k, k_tma,
                lists, band, k_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S,
                factor, cap, slope, bin_cols, start, stop, edges[3], part != 1,
                D, D_PAD, ROWS, COLS, ROW_BINS, COL_BINS, PARTS, PRECISION,
            )  # fmt: skip


@triton.jit
def _empty(ROWS: tl.constexpr, COLS: tl.constexpr):
    return tl.zeros([ROWS, COLS], tl.float32)


@triton.jit
def _past_keys(
    sums, peaks, troughs, query, level, share, inside, mass, peak, trough, gain, k, k_tma, lists, band,
    k_step, b, g, position, S, factor, cap, slope, bin_cols, start, stop, last,
    PARTIAL: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in tl.range(start, stop):
        block = i
        if lists is not None:
            block = tl.load(lists.block + i)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)
        allowed = None
        if PARTIAL:  # loaded before tl.dot, which hides the latency of memory
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS)

        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        score = scored(product, factor, cap, slope, position[:, None], key[None, :])
        weight = tl.exp2(score - level[:, None])
        if PARTIAL:
            weight = tl.where(allowed, weight, 0.0)
        if gain is not None:
            weight *= tl.load(gain + key, mask=key < S, other=0.0)[None, :]

        above, below = weight, None
        if trough is not None:
            above, below = tl.where(weight < 0, 0.0, weight), tl.where(weight > 0, 0.0, -weight)
        col = block // PARTS * COL_BINS + tl.arange(0, COL_BINS)
        if PARTS == 1:
            _store_bins(
                mass, peak, trough, weight, above, below, share, inside, col, bin_cols,
                ROWS, COLS, ROW_BINS, COL_BINS,
            )  # fmt: skip
        else:
            sums += weight
            peaks = tl.maximum(peaks, above)
            if trough is not None:
                troughs = tl.maximum(troughs, below)
            if block % PARTS == PARTS - 1 or i == last - 1:  # the bin ends here
                _store_bins(
                    mass, peak, trough, sums, peaks, troughs, share, inside, col, bin_cols,
                    ROWS, COLS, ROW_BINS, COL_BINS,
                )  # fmt: skip
                sums, peaks, troughs = _empty(ROWS, COLS), _empty(ROWS, COLS), _empty(ROWS, COLS)
    return sums, peaks, troughs


@triton.jit
def _store_bins(
    mass, peak, trough, sums, peaks, troughs, share, inside, col, bin_cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr,
):  # fmt: skip
    """Store the mean over queries of `sums` and the largest of `peaks` and `troughs` in the columns `col`."""
    there = inside[:, None] & (col < bin_cols)[None, :]
    col = col[None, :]
    total = _sum_of_bins(sums, ROWS, COLS, ROW_BINS, COL_BINS)
    tl.store(mass[:, None] + col, total * share, mask=there)
    tl.store(peak[:, None] + col, _max_of_bins(peaks, ROWS, COLS, ROW_BINS, COL_BINS), mask=there)
    if trough is not None:
        tl.store(trough[:, None] + col, _max_of_bins(troughs, ROWS, COLS, ROW_BINS, COL_BINS), mask=there)


@triton.jit
def _sum_of_bins(
    tile, ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr
):  # fmt: skip
    """The sum of each bin of a tile, (ROW_BINS, COL_BINS)."""
    if COLS // COL_BINS == 4:  # the other branch computes wrong numbers here (Triton 3.6 on Hopper)
        bins = tile.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS)
        return tl.sum(tl.sum(bins, 3), 1)
    else:
        return tl.sum(_by_bin(tile, ROWS, COLS, ROW_BINS, COL_BINS), 1).reshape(ROW_BINS, COL_BINS)


@triton.jit
def _max_of_bins(
    tile, ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr
):  # fmt: skip
    """The largest entry of each bin of a tile without negative ones, (ROW_BINS, COL_BINS)."""
    if COLS // COL_BINS == 4:  # as above
        bins = tile.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS)
        return tl.max(tl.max(bins, 3), 1)
    else:
        # Floats above 0 sort as their bits do, and a warp finds the largest integer in one instruction.
        bits = _by_bin(tile, ROWS, COLS, ROW_BINS, COL_BINS).to(tl.int32, bitcast=True)
        return tl.max(bits, 1).to(tl.float32, bitcast=True).reshape(ROW_BINS, COL_BINS)


@triton.jit
def _by_bin(
    tile, ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr
):  # fmt: skip
    """A tile as (bins, entries of a bin)."""
    bins = tile.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS).permute(0, 2, 1, 3)
    return bins.reshape(ROW_BINS * COL_BINS, ROWS * COLS // (ROW_BINS * COL_BINS))
