"""The k largest weights of every row of the attention matrix in Triton, in one pass and without the matrix.

One program takes one block of queries past the key blocks it sees, the latest keys first. It keeps the k
largest scores of each row so far, in no order. A block of keys costs one maximum a row unless a score beats
the least of those; then the largest scores of the block enter one by one, each in the place of the least.
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


@triton.jit
def topk_kernel(
    q, k, k_tma, lse, weights, indices, slopes, lists, band,
    q_step, k_step, heads, group, T, S, factor, cap, K,
    K_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The K largest weights of a block of rows, largest first, and their keys; key −1 for a weight of 0."""
    block, head, b, h, g = program_block(tl.cdiv(T, ROWS), heads, group)
    k += b * k_step[0] + g * k_step[1]

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    inside = row < T
    query = load_rows(q + b * q_step[0] + h * q_step[1], q_step, first_row, inside, D, ROWS, D_PAD)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E
    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)

    # A place past the K-th holds +inf, so that it is never the least.
    place = tl.arange(0, K_PAD)[None, :]
    best = tl.where(place < K, float("-inf"), float("inf")) + tl.zeros([ROWS, K_PAD], tl.float32)
    index = tl.full([ROWS, K_PAD], -1, tl.int32)
    for part in tl.static_range(3):
        start, stop = edges[2 - part], edges[3 - part]  # the latest keys first
        if part != 2 or (lists is None and band.behind is not None):
            best, index = _past_keys(
                best, index, query, row + S - T, k, k_tma, lists, band, k_step,
                b.to(tl.int32), g.to(tl.int32), S, factor, cap, slope, start, stop, part != 1,
                K_PAD, D, D_PAD, ROWS, COLS, PRECISION,
            )  # fmt: skip

    # Take the largest of those that are left, K times; of equal ones, that of the first key.
    best = tl.where(place < K, best, float("-inf"))
    level = load_levels(lse + head * T, row, inside)
    at = (head * T + row) * K
    for n in range(K):
        top = tl.max(best, 1)
        key = tl.min(tl.where(best == top[:, None], index, S), 1)
        best = tl.where(index == key[:, None], float("-inf"), best)
        weight = tl.exp2(top - level)
        tl.store(weights + at + n, weight, mask=inside)
        tl.store(indices + at + n, tl.where(weight == 0, -1, key).to(tl.int64), mask=inside)


@triton.jit
def _past_keys(
    best, index, query, position, k, k_tma, lists, band, k_step,
    b, g, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, K_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, K_PAD)[None, :]
    least = tl.min(best, 1)
    block = block_at(lists, stop - 1, start, stop)
    for back in tl.range(0, stop - start):
        i = stop - 1 - back
        following = block_at(lists, i - 1, start, stop)
        key_first = block * COLS
        key = key_first + tl.arange(0, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)  # (COLS, D)

        allowed = None
        if PARTIAL:  # loaded before tl.dot, which hides the latency of memory
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS)
        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        score = scored(product, factor, cap, slope, position[:, None], key[None, :])
        if PARTIAL:
            score = tl.where(allowed, score, float("-inf"))

        top = tl.max(score, 1)
        while tl.max((top > least).to(tl.int32), 0) > 0:
            # The largest score of each row enters, if it beats the least, and leaves the tile.
            own_key = tl.min(tl.where(score == top[:, None], key[None, :], key_first + COLS), 1)
            slot = tl.min(tl.where(best == least[:, None], place, K_PAD), 1)
            here = (place == slot[:, None]) & (top > least)[:, None]
            best = tl.where(here, top[:, None], best)
            index = tl.where(here, own_key[:, None], index)
            least = tl.min(best, 1)
            score = tl.where(key[None, :] == own_key[:, None], float("-inf"), score)
            top = tl.max(score, 1)
        block = following
    return best, index
