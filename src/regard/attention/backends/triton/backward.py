"""Fused attention in Triton, backward: the gradients of q, k and v, without the T×S matrix.

The weights are recomputed from q, k and, for each row, the greatest score and the logarithm of the total of
the online softmax; their sum, the log-sum-exp, would lose digits of large scores. One kernel takes a block of
queries past the keys and sums the gradient of q; another takes a block of keys past the queries, of every
head that reads them, and sums those of k and v. Nothing is added atomically, so two runs give the same bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import (
    LOG2E,
    load_block,
    load_rows,
    program_block,
    seen_by_any,
    store_rows,
    tanh,
    visible,
    visited_keys,
    visiting_queries,
)


@triton.jit
def prepare_kernel(
    out, grad, tops, level, delta, out_step, grad_step, heads, T,
    E: tl.constexpr, E_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Σ out · grad and the greatest score of each query; +inf where it sees no key, so its weights are 0."""
    blocks = tl.cdiv(T, ROWS)
    first = tl.program_id(0) % blocks * ROWS
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    row = first + tl.arange(0, ROWS)
    o = load_rows(out + b * out_step[0] + h * out_step[1], out_step, first, row < T, E, ROWS, E_PAD)
    do = load_rows(grad + b * grad_step[0] + h * grad_step[1], grad_step, first, row < T, E, ROWS, E_PAD)
    at = head * T + row
    tl.store(delta + at, tl.sum(o.to(tl.float32) * do.to(tl.float32), 1), mask=row < T)
    own = tl.load(tops + at, mask=row < T)
    tl.store(level + at, tl.where(own == float("-inf"), float("inf"), own), mask=row < T)


@triton.jit
def queries_kernel(
    q, k, v, grad, k_tma, v_tma, level, log_totals, delta, q_grad, slopes, lists, band,
    q_step, k_step, v_step, grad_step, q_grad_step, heads, group, T, S, factor, cap, scale,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, UNSEEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries; UNSEEN is that of `forward_kernel`."""
    block, head, b, h, g = program_block(tl.cdiv(T, ROWS), heads, group)
    k += b * k_step[0] + g * k_step[1]
    v += b * v_step[0] + g * v_step[1]

    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    query = load_rows(q + b * q_step[0] + h * q_step[1], q_step, first_row, row < T, D, ROWS, D_PAD)
    do = load_rows(grad + b * grad_step[0] + h * grad_step[1], grad_step, first_row, row < T, E, ROWS, E_PAD)
    at = head * T + row
    own_level = tl.load(level + at, mask=row < T, other=float("inf"))
    own_log_total = tl.load(log_totals + at, mask=row < T, other=0.0)
    own_delta = tl.load(delta + at, mask=row < T, other=0.0)
    slope = None if slopes is None else tl.load(slopes + h) * LOG2E

    edges = visited_keys(lists, band, b, h, block, T, S, ROWS, COLS)

    total = tl.zeros([ROWS, D_PAD], tl.float32)
    # static_range unrolls the three loops, so that the middle one is compiled without any masking.
    for part in tl.static_range(3):
        start, stop = edges[part], edges[part + 1]
        if part != 0 or (lists is None and band.behind is not None):
            total = _past_keys(
                total, query, do, own_level, own_log_total, own_delta, k, v, k_tma, v_tma, lists, band,
                k_step, v_step, b.to(tl.int32), g.to(tl.int32), row + S - T, S,
                factor, cap, slope, start, stop, part != 1, UNSEEN, D, E, D_PAD, E_PAD, ROWS, COLS, PRECISION,
            )  # fmt: skip
    q_grad += b * q_grad_step[0] + h * q_grad_step[1]
    store_rows(q_grad, q_grad_step, first_row, T, total * scale, D, ROWS, D_PAD)


@triton.jit
def _past_keys(
    total, query, do, own_level, own_log_total, own_delta, k, v, k_tma, v_tma, lists, band, k_step, v_step,
    b, g, position, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, UNSEEN: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr,
    E_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in tl.range(start, stop):
        key_first = i * COLS
        if lists is not None:
            key_first = tl.load(lists.block + i) * COLS
        key = key_first + tl.arange(0, COLS)
        allowed = None
        if PARTIAL:
            allowed = visible(lists, i, band, position, key, S, ROWS, COLS)
        if PARTIAL and UNSEEN:  # their gradients are 0, but 0 · NaN is NaN
            seen = seen_by_any(allowed, position, S)
            keys = load_rows(k, k_step, key_first, seen, D, COLS, D_PAD)  # (COLS, D)
        else:
            keys = load_block(k, k_step, k_tma, b, g, key_first, S, PARTIAL, D, COLS, D_PAD)
        values = load_block(v, v_step, v_tma, b, g, key_first, S, PARTIAL, E, COLS, E_PAD)  # (COLS, E)
        product = tl.dot(query, keys.T, input_precision=PRECISION)  # (ROWS, COLS)
        d_weight = tl.dot(do, values.T, input_precision=PRECISION)
        _, d_product = _through(
            product, d_weight, own_level[:, None], own_log_total[:, None], own_delta[:, None], allowed,
            factor, cap, slope, position[:, None], key[None, :],
        )  # fmt: skip
        total = tl.dot(d_product.to(keys.dtype), keys, total, input_precision=PRECISION)  # (ROWS, D)
    return total


@triton.jit
def keys_kernel(
    q, k, v, grad, q_tma, grad_tma, level, log_totals, delta, k_grad, v_grad, slopes, lists, band,
    q_step, k_step, v_step, grad_step, k_grad_step, v_grad_step, heads, group, T, S, factor, cap, scale,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and of its values; `heads` counts the key/value heads."""
    blocks = tl.cdiv(S, COLS)
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    b, g = (head // heads).to(tl.int64), (head % heads).to(tl.int64)

    first_key = block * COLS
    key = first_key + tl.arange(0, COLS)
    keys = load_rows(k + b * k_step[0] + g * k_step[1], k_step, first_key, key < S, D, COLS, D_PAD)
    values = load_rows(v + b * v_step[0] + g * v_step[1], v_step, first_key, key < S, E, COLS, E_PAD)
    k_total = tl.zeros([COLS, D_PAD], tl.float32)
    v_total = tl.zeros([COLS, E_PAD], tl.float32)

    for member in range(group):
        h = g * group + member
        at = (b * heads * group + h) * T
        slope = None if slopes is None else tl.load(slopes + h) * LOG2E
        edges = visiting_queries(lists, band, b, h, block, T, S, ROWS, COLS)
        for part in tl.static_range(3):
            start, stop = edges[part], edges[part + 1]
            # Without lists, partial blocks come first under a causal mask and last under a window.
            if (
                part == 1
                or (part == 0 and lists is None and band.ahead is not None)
                or (part == 2 and (lists is not None or band.behind is not None))
            ):
                k_total, v_total = _past_queries(
                    k_total, v_total, keys, values, q + b * q_step[0] + h * q_step[1],
                    grad + b * grad_step[0] + h * grad_step[1], q_tma, grad_tma, level + at, log_totals + at,
                    delta + at, lists, band, q_step, grad_step, b.to(tl.int32), h.to(tl.int32), key, T, S,
                    factor, cap, slope, start, stop, part != 1, D, E, D_PAD, E_PAD, ROWS, COLS, PRECISION,
                )  # fmt: skip

    k_grad += b * k_grad_step[0] + g * k_grad_step[1]
    store_rows(k_grad, k_grad_step, first_key, S, k_total * scale, D, COLS, D_PAD)
    v_grad += b * v_grad_step[0] + g * v_grad_step[1]
    store_rows(v_grad, v_grad_step, first_key, S, v_total, E, COLS, E_PAD)


@triton.jit
def _past_queries(
    k_total, v_total, keys, values, q, grad, q_tma, grad_tma, level, log_totals, delta, lists, band,
    q_step, grad_step,
    b, h, key, T, S, factor, cap, slope, start, stop,
    PARTIAL: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in tl.range(start, stop):
        first_row = i * ROWS
        if lists is not None:
            first_row = tl.load(lists.block + i) * ROWS
        row = first_row + tl.arange(0, ROWS)
        query = load_block(q, q_step, q_tma, b, h, first_row, T, True, D, ROWS, D_PAD)  # (ROWS, D)
        do = load_block(grad, grad_step, grad_tma, b, h, first_row, T, True, E, ROWS, E_PAD)  # (ROWS, E)
        own_level = tl.load(level + row, mask=row < T, other=float("inf"))
        own_log_total = tl.load(log_totals + row, mask=row < T, other=0.0)
        own_delta = tl.load(delta + row, mask=row < T, other=0.0)
        allowed = None
        if PARTIAL:
            allowed = visible(lists, i, band, row + S - T, key, S, ROWS, COLS, TURNED=True)
        product = tl.dot(keys, query.T, input_precision=PRECISION)  # (COLS, ROWS)
        d_weight = tl.dot(values, do.T, input_precision=PRECISION)
        weight, d_product = _through(
            product, d_weight, own_level[None, :], own_log_total[None, :], own_delta[None, :], allowed,
            factor, cap, slope, (row + S - T)[None, :], key[:, None],
        )  # fmt: skip
        v_total = tl.dot(weight.to(do.dtype), do, v_total, input_precision=PRECISION)
        k_total = tl.dot(d_product.to(query.dtype), query, k_total, input_precision=PRECISION)
    return k_total, v_total


@triton.jit
def _through(product, d_weight, level, log_total, delta, allowed, factor, cap, slope, q, k):
    """The weights, and the gradient of the products (without the scale) from that of the weights."""
    score = product * factor
    if cap is not None:
        bent = tanh(score)
        score = cap * bent
    if slope is not None:
        score -= slope * tl.abs(q - k).to(tl.float32)
    weight = tl.exp2(score - level - log_total)
    if allowed is not None:
        weight = tl.where(allowed, weight, 0.0)
    d_product = weight * (d_weight - delta)
    if cap is not None:
        d_product *= (1.0 - bent) * (1.0 + bent)  # 1 − tanh² would lose digits near 1
    if allowed is not None:  # 0 · NaN is NaN, and a hidden value may be NaN
        d_product = tl.where(allowed, d_product, 0.0)
    return weight, d_product
