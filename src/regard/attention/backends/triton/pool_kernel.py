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
    gather_rows,
    in_band,
    key_blocks,
    list_of,
    load_block,
    load_rows,
    scored,
    tile_bits,
)


@triton.jit
def pool_kernel(
    q, k, k_tma, lse, mass, peak, share, gain, slopes, lists, band, row_index, col_index,
    q_step, k_step, heads, group, T, S, factor, cap, bin_rows, bin_cols,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Mass and peak of the bins of a block.

    A block holds ROW_BINS × COL_BINS bins, or a bin is PARTS blocks wide.

    gain, 0 or above, multiplies the weights of each key of each head. BITS says that the lists have tiles of
    bits for what is visible in partial blocks; otherwise the band says it. row_index and col_index hold the
    query and key in each place of a block, −1 for a gap; without them place n holds index n.
    """
    blocks = tl.cdiv(bin_rows, ROW_BINS)
    block = blocks - 1 - tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    g = h // group
    k += b * k_step[0] + g * k_step[1]
    q += b * q_step[0] + h * q_step[1]

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    if row_index is None:
        real = row < T
        query = load_rows(q, q_step, first_row, real, D, ROWS, D_PAD)
    else:
        row = tl.load(row_index + row)
        real = row >= 0
        query = gather_rows(q, q_step, row, D, D_PAD)
    if gain is not None:
        gain += head.to(tl.int64) * S
    level = tl.load(lse + head.to(tl.int64) * T + row, mask=real, other=float("-inf"))
    # A query that sees no key has no weights; nor has a place without a query.
    level = tl.where(level == float("-inf"), float("inf"), level * LOG2E)
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + h) * LOG2E

    row_bin = block * ROW_BINS + tl.arange(0, ROW_BINS)
    inside = row_bin < bin_rows
    own_share = tl.load(share + row_bin, mask=inside, other=0.0)  # 1 / the number of queries in the bin
    at = (head.to(tl.int64) * bin_rows + row_bin)[:, None] * bin_cols + tl.arange(0, COL_BINS)[None, :]
    mass += at
    peak += at

    if lists is None:
        last_row = tl.minimum(first_row + ROWS, T) - 1
        first, full_first, full_last, last = key_blocks(first_row + S - T, last_row + S - T, S, band, COLS)
    else:
        full_first, full_last, last = list_of(lists, b, h, block)
        first = full_first

    # Where a bin is PARTS blocks wide, a tile of sums and a tile of maxima are kept until it ends.
    sums, peaks = tl.zeros([ROWS, COLS], tl.float32), tl.zeros([ROWS, COLS], tl.float32)
    for part in tl.static_range(3):
        if part == 0:
            start, stop = first, full_first
        elif part == 1:
            start, stop = full_first, full_last
        else:
            start, stop = full_last, last
        if part != 0 or (lists is None and band.behind is not None):
            sums, peaks = _past_keys(
                sums, peaks, query, level, own_share, inside, mass, peak, gain, k, k_tma, lists, band,
                col_index, k_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S, factor, cap, slope,
                bin_cols, start, stop, last, part != 1, D, D_PAD, ROWS, COLS, ROW_BINS, COL_BINS, PARTS, BITS,
                PRECISION,
            )  # fmt: skip


@triton.jit
def _past_keys(
    sums, peaks, query, level, own_share, inside, mass, peak, gain, k, k_tma, lists, band, col_index, k_step,
    b, g, position, S, factor, cap, slope, bin_cols, start, stop, last,
    PARTIAL: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    for i in tl.range(start, stop):
        block = i
        if lists is not None:
            block = tl.load(lists.block + i)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        if col_index is not None:
            key = tl.load(col_index + key)
            keys = gather_rows(k, k_step, key, D, D_PAD)
        else:
            keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)

        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        score = scored(product, factor, cap, slope, position[:, None], key[None, :])
        weight = tl.exp2(score - level[:, None])
        if PARTIAL:
            if BITS:
                allowed = tile_bits(lists, i, ROWS, COLS, False)
            else:
                allowed = in_band(position[:, None], key[None, :], S, band) & (key >= 0)[None, :]
            weight = tl.where(allowed, weight, 0.0)
        if gain is not None:
            weight *= tl.load(gain + key, mask=(key >= 0) & (key < S), other=0.0)[None, :]

        col = block // PARTS * COL_BINS
        if PARTS == 1:
            _store_bins(
                mass + col, peak + col, weight, weight, own_share, inside, bin_cols - col,
                ROWS, COLS, ROW_BINS, COL_BINS,
            )  # fmt: skip
        else:
            sums += weight
            peaks = tl.maximum(peaks, weight)
            if block % PARTS == PARTS - 1 or i == last - 1:  # the bin ends here
                _store_bins(
                    mass + col, peak + col, sums, peaks, own_share, inside, bin_cols - col,
                    ROWS, COLS, ROW_BINS, COL_BINS,
                )  # fmt: skip
                sums, peaks = tl.zeros([ROWS, COLS], tl.float32), tl.zeros([ROWS, COLS], tl.float32)
    return sums, peaks


@triton.jit
def _store_bins(
    mass, peak, sums, peaks, own_share, inside, bins_left,
    ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr,
):  # fmt: skip
    """Store the mean over queries of `sums`, and the largest of `peaks`, in each bin of a tile."""
    if COLS // COL_BINS == 4:  # the other branch computes wrong numbers here (Triton 3.6 on Hopper)
        total = tl.sum(tl.sum(sums.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS), 3), 1)
        most = tl.max(tl.max(peaks.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS), 3), 1)
    else:
        total = tl.sum(_by_bin(sums, ROWS, COLS, ROW_BINS, COL_BINS), 1).reshape(ROW_BINS, COL_BINS)
        # Floats above 0 sort as their bits do, and a warp finds the largest integer in one instruction.
        bits = _by_bin(peaks, ROWS, COLS, ROW_BINS, COL_BINS).to(tl.int32, bitcast=True)
        most = tl.max(bits, 1).to(tl.float32, bitcast=True).reshape(ROW_BINS, COL_BINS)
    there = inside[:, None] & (tl.arange(0, COL_BINS) < bins_left)[None, :]
    tl.store(mass, total * own_share[:, None], mask=there)
    tl.store(peak, most, mask=there)


@triton.jit
def _by_bin(
    tile, ROWS: tl.constexpr, COLS: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr
):  # fmt: skip
    """A tile as (bins, entries of a bin)."""
    bins = tile.reshape(ROW_BINS, ROWS // ROW_BINS, COL_BINS, COLS // COL_BINS).permute(0, 2, 1, 3)
    return bins.reshape(ROW_BINS * COL_BINS, ROWS * COLS // (ROW_BINS * COL_BINS))
