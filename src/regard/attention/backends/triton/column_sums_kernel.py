"""Sums the columns of the attention matrix in Triton, each row times a weight of either sign: wᵀA.

One program takes one block of keys past the query blocks that see it, so that all of a column's sum is in one
program: no two add to one number, and the result has the same bits every time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
    LOG2E,
    gather_rows,
    in_band,
    load_block,
    load_levels,
    load_rows,
    program_block,
    scored,
    tile_bits,
    visiting_queries,
)


@triton.jit
def column_sums_kernel(
    q, k, q_tma, lse, weights, sums, slopes, lists, band, row_index,
    q_step, k_step, heads, group, T, S, factor, cap,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of a block of columns. row_index holds the query in each place, −1 for a gap.

    BITS says that the lists have tiles of bits for what is visible in partial blocks; otherwise the band says
    it.
    """
    block, head, b, h, g = program_block(tl.cdiv(S, COLS), heads, group, False)
    q += b * q_step[0] + h * q_step[1]
    lse += head * T
    weights += head * T

    first_key = block * COLS
    key = first_key + tl.arange(0, COLS)
    keys = load_rows(k + b * k_step[0] + g * k_step[1], k_step, first_key, key < S, D, COLS, D_PAD)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    edges = visiting_queries(lists, band, b, h, block, T, S, ROWS, COLS)
    # A tile of sums, which are added up at the end.
    total = tl.zeros([ROWS, COLS], tl.float32)
    for part in tl.static_range(3):
        start, stop = edges[part], edges[part + 1]
        # Without lists, partial blocks come first under a causal mask and last under a window.
        if (
            part == 1
            or (part == 0 and lists is None and band.ahead is not None)
            or (part == 2 and (lists is not None or band.behind is not None))
        ):
            total = _past_queries(
                total, keys, key, q, q_tma, lse, weights, lists, band, row_index, q_step,
                b.to(tl.int32), h.to(tl.int32), T, S, factor, cap, slope, start, stop, part != 1,
                D, D_PAD, ROWS, COLS, BITS, PRECISION,
            )  # fmt: skip
    tl.store(sums + head * S + key, tl.sum(total, 0), mask=key < S)


@triton.jit
def _past_queries(
    total, keys, key, q, q_tma, lse, weights, lists, band, row_index, q_step,
    b, h, T, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    BITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in tl.range(start, stop):
        first_row = i * ROWS
        if lists is not None:
            first_row = tl.load(lists.block + i) * ROWS
        row = first_row + tl.arange(0, ROWS)
        if row_index is None:
            real = row < T
            query = load_block(q, q_step, q_tma, b, h, first_row, T, True, D, ROWS, D_PAD)  # (ROWS, D)
        else:
            row = tl.load(row_index + row)
            real = row >= 0
            query = gather_rows(q, q_step, row, D, D_PAD)
        own_weight = tl.load(weights + row, mask=real, other=0.0)
        level = load_levels(lse, row, real)

        position = row + S - T
        bits = None
        if PARTIAL and BITS:  # loaded before tl.dot, which hides the latency of memory
            bits = tile_bits(lists, i, ROWS, COLS, False)
        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        score = scored(product, factor, cap, slope, position[:, None], key[None, :])
        weight = tl.exp2(score - level[:, None]) * own_weight[:, None]
        allowed = own_weight[:, None] != 0.0  # a row that does not count may hold anything
        if PARTIAL:
            if BITS:
                allowed = allowed & bits
            else:
                allowed = allowed & in_band(position[:, None], key[None, :], S, band)
        total += tl.where(allowed, weight, 0.0)
    return total
