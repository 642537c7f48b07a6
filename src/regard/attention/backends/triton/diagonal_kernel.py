"""The weights along one diagonal of the attention matrix in Triton: one dot product each, in float64."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# No `from __future__ import annotations` here: Triton reads the annotations themselves.

import triton
import triton.language as tl

from regard.attention.backends.triton.tile import LOG2E, load_rows, program_block


# A number that is 1, or not divisible by 16, would be another kernel to compile; so would such an address.
# Most diagonals begin at the second row or key, and uniform attention has one head.
@triton.jit(do_not_specialize=["heads", "group", "N"], do_not_specialize_on_alignment=["lse"])
def diagonal_kernel(
    q, k, lse, weights, q_step, k_step, lse_step, heads, group, N, scale, cap,
    D: tl.constexpr, D_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The weights of a block of queries on the keys that have the same numbers."""
    block, head, b, h, g = program_block(tl.cdiv(N, ROWS), heads, group, False)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    query = load_rows(q + b * q_step[0] + h * q_step[1], q_step, first, row < N, D, ROWS, D_PAD)
    keys = load_rows(k + b * k_step[0] + g * k_step[1], k_step, first, row < N, D, ROWS, D_PAD)
    level = tl.load(lse + b * lse_step[0] + h * lse_step[1] + row * lse_step[2], mask=row < N, other=0.0)

    # The product of two numbers of half precision is exact in float32.
    if query.dtype == tl.float32:
        products = query.to(tl.float64) * keys.to(tl.float64)
    else:
        products = (query.to(tl.float32) * keys.to(tl.float32)).to(tl.float64)
    score = tl.sum(products, 1) * scale
    if cap is not None:
        # tl has no tanh; in float64 this form loses no digit that float32 would show.
        score = cap * (1.0 - 2.0 / (tl.exp(2.0 * score / cap) + 1.0))  # cap · tanh(score / cap)
    weight = tl.exp2(((score - level) * LOG2E).to(tl.float32))
    weight = tl.where(level == float("-inf"), 0.0, weight)  # a query that sees no key has no weights
    tl.store(weights + head * N + row, weight, mask=row < N)
