"""Row and column statistics of the attention matrix in Triton: entropy, distance, largest score, and the
attention that keys receive.

One program takes one block of queries past the key blocks it sees, as pooling does. Tiles are turned: a row
of a tile is a key, a column is a query. The sums of a query are kept as a tile of partial sums, which are
added up at the end, so that for each tile only the attention that its keys receive is summed across threads.
That comes from many programs, which add to it in no fixed order. It is added in integers, units of 2⁻⁴⁰,
whose sum has the same bits in any order. On request the same pass pools the weights into cells.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
    LN2,
    LOG2E,
    block_at,
    load_block,
    load_levels,
    load_rows,
    program_block,
    scored,
    visible,
    visited_keys,
)

UNITS = tl.constexpr(2.0**40)  # integer units in a weight of 1
EMPTY_ROW_LSE = tl.constexpr(1e30)  # in place of infinity: 0 · 1e30 is 0, not NaN


# A number of heads that is 1, or not divisible by 16, would be another kernel to compile, and uniform
# attention, the baseline of the head scores, has one head where the map has many.
@triton.jit(do_not_specialize=["heads", "group"])
def statistics_kernel(
    q, k, k_tma, lse, entropy, distance, received, largest, mass, peak, share, slopes, lists, band,
    q_step, k_step, heads, group, T, S, factor, cap, first_position, bin_rows, bin_cols,
    ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Statistics of a block of queries; `received` and `largest` may be None, both or neither.

    Query i is at i + first_position; the mask counts i + S − T. Beside `received`, `mass` and `peak` are
    those of the pooling kernel, or None: a block holds ROW_BINS × COL_BINS bins that fill it, or a bin is
    PARTS blocks of keys wide. share is 1 / the number of queries in a bin.
    """
    block, head, b, h, g = program_block(tl.cdiv(T, ROWS), heads, group)
    k += b * k_step[0] + g * k_step[1]
    q += b * q_step[0] + h * q_step[1]
    if received is not None:
        received += head * S

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    inside = row < T
    query = load_rows(q, q_step, first_row, inside, D, ROWS, D_PAD)
    level = load_levels(lse + head * T, row, inside, EMPTY_ROW_LSE)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    in_bin = None
    if mass is not None:
        row_bin = block * ROW_BINS + tl.arange(0, ROW_BINS)
        in_bin = row_bin < bin_rows
        mass += (head * bin_rows + row_bin) * bin_cols
        peak += (head * bin_rows + row_bin) * bin_cols

    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)

    surprise = tl.zeros([COLS, ROWS], tl.float32)  # Σ weight · log2 weight
    back = tl.zeros([COLS, ROWS], tl.float32)  # Σ weight · steps back
    top = tl.full([COLS, ROWS], -EMPTY_ROW_LSE, tl.float32)  # the largest log2 weight
    # By key and bin of queries, until the bin of keys ends; a maximum as its bits, see `pool_kernel`.
    sums, peaks = tl.zeros([COLS, ROW_BINS], tl.float32), tl.zeros([COLS, ROW_BINS], tl.int32)
    for part in tl.static_range(3):
        start, stop = edges[part], edges[part + 1]
        if part != 0 or (lists is None and band.behind is not None):
            surprise, back, top, sums, peaks = _past_keys(
                surprise, back, top, sums, peaks, query, level, row, received, mass, peak, share, in_bin,
                k, k_tma, lists, band,
                k_step, b.to(tl.int32), g.to(tl.int32), T, S, factor, cap, slope, first_position, bin_cols,
                start, stop, edges[3], part != 1, ROW_BINS, COL_BINS, PARTS, D, D_PAD, ROWS, COLS, PRECISION,
            )  # fmt: skip
    nats = -tl.sum(surprise, 0) * LN2
    tl.store(entropy + head * T + row, nats, mask=inside)
    tl.store(distance + head * T + row, tl.sum(back, 0), mask=inside)
    if largest is not None:
        most = tl.max(top, 0)
        # A row that sees no key, as the hidden entries of others, stands at −1e30 or below.
        most = tl.where(most <= -EMPTY_ROW_LSE, float("-inf"), most * LN2)
        most = tl.where(nats == nats, most, nats)  # a maximum drops NaN, a sum does not
        tl.store(largest + head * T + row, most, mask=inside)


@triton.jit
def _past_keys(
    surprise, back, top, sums, peaks, query, level, row, received, mass, peak, share, in_bin,
    k, k_tma, lists, band,
    k_step, b, g, T, S, factor, cap, slope, first_position, bin_cols, start, stop, last,
    PARTIAL: tl.constexpr, ROW_BINS: tl.constexpr, COL_BINS: tl.constexpr, PARTS: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    position = row + S - T
    stands = (row + first_position).to(tl.float32)
    block = block_at(lists, start, start, stop)
    for i in tl.range(start, stop):
        following = block_at(lists, i + 1, start, stop)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)  # (COLS, D)

        allowed = None
        if PARTIAL:  # loaded before tl.dot, which hides the latency of memory
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS, TURNED=True)
        product = tl.dot(keys, query.T, input_precision=PRECISION)  # (COLS, ROWS)
        log = scored(product, factor, cap, slope, position[None, :], key[:, None]) - level[None, :]
        if PARTIAL:
            log = tl.where(allowed, log, -EMPTY_ROW_LSE)  # first of all, since a hidden entry may be NaN
        weight = tl.exp2(log)
        surprise += weight * log
        back += weight * (stands[None, :] - key.to(tl.float32)[:, None])
        if received is not None:  # and the largest, too
            top = tl.maximum(top, log)
            if mass is None:
                got = tl.sum(weight, 1)
            else:
                by_bin = tl.sum(weight.reshape(COLS, ROW_BINS, ROWS // ROW_BINS), 2)
                got = tl.sum(by_bin, 1)
                bits = weight.to(tl.int32, bitcast=True)
                sums += by_bin
                peaks = tl.maximum(peaks, tl.max(bits.reshape(COLS, ROW_BINS, ROWS // ROW_BINS), 2))
                if PARTS == 1 or block % PARTS == PARTS - 1 or i == last - 1:  # the bin ends here
                    col = block // PARTS * COL_BINS + tl.arange(0, COL_BINS)
                    there = (col < bin_cols)[:, None] & in_bin[None, :]
                    of_cells = tl.sum(sums.reshape(COL_BINS, COLS // COL_BINS, ROW_BINS), 1)
                    tl.store(mass[None, :] + col[:, None], of_cells * share, mask=there)
                    most = tl.max(peaks.reshape(COL_BINS, COLS // COL_BINS, ROW_BINS), 1)
                    tl.store(peak[None, :] + col[:, None], most.to(tl.float32, bitcast=True), mask=there)
                    sums = tl.zeros([COLS, ROW_BINS], tl.float32)
                    peaks = tl.zeros([COLS, ROW_BINS], tl.int32)
            got = (got * UNITS).to(tl.int64)
            tl.atomic_add(received + key, got, mask=key < S, sem="relaxed")
        block = following
    return surprise, back, top, sums, peaks
