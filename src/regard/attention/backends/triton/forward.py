"""Fused attention in Triton, forward: the output and the row log-sum-exp, without the T×S matrix.

One program takes one block of queries past the key blocks it may look at, keeping for each query the largest
score, the sum of weights and the weighted sum of values so far (the online softmax). Blocks that are allowed
whole pay nothing for masking.

If asked, it also pools the weights into cells. A weight is known only at the end, with the row log-sum-exp;
on the way each query's log-sum and largest score of every cell go to a scratch buffer.
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
    load_rows,
    program_block,
    scored,
    seen_by_any,
    store_rows,
    visible,
    visited_keys,
)


@triton.jit
def forward_kernel(
    q, k, v, k_tma, v_tma, out, lse, tops, log_totals, sinks, slopes, lists, band, cells,
    q_step, k_step, v_step, out_step, heads, group, T, S, factor, cap, first_head,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, CELL: tl.constexpr, UNSEEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of the heads from `first_head` on; `cells`, of CELL keys, needs a mask that is a band.

    UNSEEN says that some keys may be hidden from every query, whose values must not be read.
    """
    blocks = tl.cdiv(T, ROWS)
    block, head, b, h, g = program_block(blocks, heads, group, True, first_head)
    k += b * k_step[0] + g * k_step[1]
    v += b * v_step[0] + g * v_step[1]

    row = block * ROWS + tl.arange(0, ROWS)
    query = load_rows(
        q + b * q_step[0] + h * q_step[1], q_step, block * ROWS, row < T, D, ROWS, D_PAD
    )  # (ROWS, D)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    # A sink is a score before that of the first key, without a value.
    if sinks is None:
        top, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    else:
        top = tl.zeros([ROWS], tl.float32) + tl.load(sinks + h).to(tl.float32) * LOG2E
        total = tl.full([ROWS], 1.0, tl.float32)
    sums = tl.zeros([ROWS, E_PAD], tl.float32)
    cell_sum, cell_top = tl.zeros([ROWS], tl.float32), tl.full([ROWS], float("-inf"), tl.float32)
    slot = 0
    if cells is not None:
        slot = tl.program_id(0).to(tl.int64) * cells.width * ROWS + tl.arange(0, ROWS)

    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)
    for part in tl.static_range(3):
        # Partial blocks before the full ones (only a window has them), the full ones, the partial ones after.
        start, stop = edges[part], edges[part + 1]
        if part != 0 or (lists is None and band.behind is not None):
            sums, total, top, cell_sum, cell_top = _pass_over(
                sums, total, top, cell_sum, cell_top, query, k, v, k_tma, v_tma, lists, band, cells, slot,
                k_step, v_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S,
                factor, cap, slope, start, stop, edges[3],
                part != 1, UNSEEN, D, E, D_PAD, E_PAD, ROWS, COLS, CELL, PRECISION,
            )  # fmt: skip

    # For a query that sees no key, top is −inf: the lse stays −inf and the output 0.
    total = tl.where(total > 0, total, 1.0)
    at = head * T + row
    tl.store(lse + at, top * LN2 + tl.log(total), mask=row < T)
    if tops is not None:  # the backward pass computes the weights from these, in base 2
        tl.store(tops + at, top, mask=row < T)
        tl.store(log_totals + at, tl.log2(total), mask=row < T)
    result = sums / total[:, None]
    store_rows(out + b * out_step[0] + h * out_step[1], out_step, block * ROWS, T, result, E, ROWS, E_PAD)
    if cells is not None:
        # A query that sees no key has no weights; nor has a place without a query.
        level = tl.where((row < T) & (top > float("-inf")), top + tl.log2(total), float("inf"))
        tl.debug_barrier()  # other threads of this program have written what is read now
        row_cell = (head * blocks + block) * cells.width
        first, stop = edges[0] * COLS // CELL, tl.cdiv(edges[3] * COLS, CELL)
        _pool_cells(cells, slot, row_cell, level, first, stop, ROWS)


@triton.jit
def _pool_cells(cells, slot, at, level, start, stop, ROWS: tl.constexpr):
    """Sum the weights of the cells start … stop over the queries of a block, and find the largest of each."""
    for first in tl.range(start, stop, 16):
        cell = first + tl.arange(0, 16)
        inside = cell < stop
        scratch = slot[None, :] + cell[:, None] * ROWS
        log_sum = tl.load(cells.log_sums + scratch, mask=inside[:, None], other=float("-inf"))
        top = tl.load(cells.tops + scratch, mask=inside[:, None], other=float("-inf"))
        tl.store(cells.sums + at + cell, tl.sum(tl.exp2(log_sum - level[None, :]), 1), mask=inside)
        tl.store(cells.peaks + at + cell, tl.exp2(tl.max(top - level[None, :], 1)), mask=inside)


@triton.jit
def _pass_over(
    sums, total, top, cell_sum, cell_top, query, k, v, k_tma, v_tma, lists, band, cells, slot, k_step, v_step,
    b, g, position, S, factor, cap, slope, start, stop, last,
    PARTIAL: tl.constexpr, UNSEEN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr,
    E_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, CELL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take a block of queries past the key blocks start … stop (or those entries of its list).

    cell_sum and cell_top are the sum of the weights, as `total` counts them, and the largest score of the
    cell that has begun; the block `last` − 1 ends the last cell.
    """
    PARTS: tl.constexpr = CELL // COLS  # blocks of keys in a cell
    block = block_at(lists, start, start, stop)
    for i in tl.range(start, stop):
        following = block_at(lists, i + 1, start, stop)
        key_first = (i if lists is None else block) * COLS
        key = key_first + tl.arange(0, COLS)

        allowed = None
        if PARTIAL:
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS)
        keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)  # (COLS, D)
        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        if PARTIAL or cap is not None or slope is not None:
            score = scored(product, factor, cap, slope, position[:, None], key[None, :])
            if PARTIAL:
                score = tl.where(allowed, score, float("-inf"))
            block_top = tl.max(score, 1)
            new_top = tl.maximum(top, block_top)
            # A query that has seen no key yet has no largest score: −inf − −inf would be NaN.
            level = tl.where(new_top == float("-inf"), 0.0, new_top) if PARTIAL else new_top
            weight = tl.exp2(score - level[:, None])
        else:
            block_top = tl.max(product, 1) * factor  # the factor is never negative
            new_top = tl.maximum(top, block_top)
            level = new_top
            weight = tl.exp2(product * factor - level[:, None])

        shrink = tl.exp2(top - level)
        block_sum = tl.sum(weight, 1)
        total = total * shrink + block_sum
        if cells is not None:
            cell_sum = cell_sum * shrink + block_sum
            cell_top = tl.maximum(cell_top, block_top)
            if i % PARTS == PARTS - 1 or i == last - 1:
                scratch = slot + (i // PARTS) * ROWS
                tl.store(cells.log_sums + scratch, level + tl.log2(cell_sum))
                tl.store(cells.tops + scratch, cell_top)
                cell_sum = tl.zeros([ROWS], tl.float32)
                cell_top = tl.full([ROWS], float("-inf"), tl.float32)
        if PARTIAL and UNSEEN:  # their weights are 0, but 0 · NaN is NaN
            seen = seen_by_any(allowed, position, S)
            values = load_rows(v, v_step, key_first, seen, E, COLS, E_PAD)  # (COLS, E)
        else:
            values = load_block(v, v_step, v_tma, b, g, key_first, S, PARTIAL, E, COLS, E_PAD)
        sums = tl.dot(weight.to(values.dtype), values, sums * shrink[:, None], input_precision=PRECISION)
        top = new_top
        block = following
    return sums, total, top, cell_sum, cell_top
