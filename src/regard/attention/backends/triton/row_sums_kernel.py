"""Sums the rows of the attention matrix in Triton, under any mask, each key times a gain if there is one: Au.

With ids it sums only the weights on earlier keys that have the number of the query, by two tables at once.

One program takes one block of queries past the key blocks it sees, as pooling does, and keeps one sum a row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
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


# A number of heads that is 1, or not divisible by 16, would be another kernel to compile, and uniform
# attention, the baseline of the head scores, has one head where the map has many.
@triton.jit(do_not_specialize=["heads", "group"])
def row_sums_kernel(
    q, k, k_tma, lse, gain, ids, key_ids, sums, slopes, lists, band,
    q_step, k_step, heads, group, T, S, factor, cap,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of a block of rows. gain, if given, multiplies the weights of each key of each head.

    ids (B, S) and key_ids (2, B, S), if given: an earlier key counts if its number in key_ids is that of the
    query in ids, and sums (2, B, H, T) has those of both tables.
    """
    block, head, b, h, g = program_block(tl.cdiv(T, ROWS), heads, group)
    k += b * k_step[0] + g * k_step[1]
    if gain is not None:
        gain += head * S

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    inside = row < T
    own_ids = None
    if ids is not None:
        own_ids = tl.load(ids + b * S + row + S - T, mask=inside, other=0)
    query = load_rows(q + b * q_step[0] + h * q_step[1], q_step, first_row, inside, D, ROWS, D_PAD)
    level = load_levels(lse + head * T, row, inside)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)

    programs = tl.num_programs(0) // tl.cdiv(T, ROWS)  # B * H
    if key_ids is not None:
        second_ids = key_ids + (programs // heads + b) * S
        key_ids += b * S
    else:
        second_ids = None
    total, second = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(3):
        start, stop = edges[part], edges[part + 1]
        if part != 0 or (lists is None and band.behind is not None):
            total, second = _past_keys(
                total, second, query, level, row + S - T, gain, own_ids, key_ids, second_ids,
                k, k_tma, lists, band, k_step, b.to(tl.int32), g.to(tl.int32),
                S, factor, cap, slope, start, stop, part != 1,
                D, D_PAD, ROWS, COLS, PRECISION,
            )  # fmt: skip
    tl.store(sums + head * T + row, total, mask=inside)
    if ids is not None:
        tl.store(sums + (programs + head) * T + row, second, mask=inside)


@triton.jit
def _past_keys(
    total, second, query, level, position, gain, own_ids, key_ids, second_ids, k, k_tma, lists, band, k_step,
    b, g, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    block = block_at(lists, start, start, stop)
    for i in tl.range(start, stop):
        following = block_at(lists, i + 1, start, stop)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)  # (COLS, D)

        # Loaded before tl.dot, which hides the latency of memory.
        allowed, own_gain = None, None
        if PARTIAL:
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS)
        if gain is not None:
            own_gain = tl.load(gain + key, mask=key < S, other=0.0)[None, :]
        numbers, second_numbers = None, None
        if own_ids is not None:
            numbers = tl.load(key_ids + key, mask=key < S, other=0)[None, :]
            second_numbers = tl.load(second_ids + key, mask=key < S, other=0)[None, :]

        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        score = scored(product, factor, cap, slope, position[:, None], key[None, :])
        weight = tl.exp2(score - level[:, None])
        if gain is not None:
            weight *= own_gain
        if PARTIAL:
            weight = tl.where(allowed, weight, 0.0)
        if own_ids is not None:
            weight = tl.where(key[None, :] < position[:, None], weight, 0.0)
            second += tl.sum(tl.where(second_numbers == own_ids[:, None], weight, 0.0), 1)
            weight = tl.where(numbers == own_ids[:, None], weight, 0.0)
        total += tl.sum(weight, 1)
        block = following
    return total, second
