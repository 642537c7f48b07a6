"""Launches the Triton kernels: which calls they support, and how tensors become kernel arguments.

Triton itself is loaded only when a kernel runs: importing this file needs nothing but PyTorch.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.triton import configs
from regard.attention.backends.triton.cells import CellBuffers, SquareCells, heads_at_once
from regard.attention.masks.base import Mask
from regard.attention.masks.block_lists import VisibleBlocks, cut_into_blocks, find_visible_blocks
from regard.attention.masks.grid import Band
from regard.attention.masks.memo import memoize_on_mask, remember

WIDEST = 256
"""The largest width of keys and values that the kernels support."""


def unsupported_reason(problem: AttentionProblem) -> str | None:
    """Why the Triton kernels cannot run a problem, in a phrase, or None if they can."""
    if problem.dropout > 0:
        return "does not do dropout"
    if problem.v.shape[-1] > WIDEST:
        return f"needs widths up to {WIDEST}, not {problem.v.shape[-1]}"
    return unsupported_scores_reason(problem.q, problem.mask)


def unsupported_map_reason(q: Tensor, k: Tensor, mask: Mask) -> str | None:
    """Why the Triton kernels cannot reduce a map of q on k, in a phrase, or None if they can."""
    if 0 in q.shape or 0 in k.shape:
        return "needs at least one query and one key"
    return unsupported_scores_reason(q, mask)


def unsupported_scores_reason(q: Tensor, mask: Mask) -> str | None:
    """Why the Triton kernels cannot score queries under a mask, in a phrase, or None if they can."""
    # find_spec does not import Triton, which takes long.
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    # Triton's interpreter runs the kernels on a CPU, which the tests use.
    if q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"needs a CUDA device, not {q.device.type}"
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"needs bfloat16, float16 or float32, not {q.dtype}".replace("torch.", "")
    if q.shape[-1] > WIDEST:
        return f"needs widths up to {WIDEST}, not {q.shape[-1]}"
    unbiased, slopes = mask.split_alibi()
    # A trainable slope needs the gradient of the bias, which the backward kernels do not compute.
    if unbiased.biased or (slopes is not None and slopes.requires_grad):
        return f"adds no numbers to the scores but alibi's, and {mask} does"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, E) and the row log-sum-exp (B, H, T), detached."""
    # Triton launches on the current device.
    with torch.cuda.device_of(problem.q):  # type: ignore[no-untyped-call]
        if not problem.needs_grad:
            return forward(problem)[:2]
        output, lse = _Attention.apply(*problem)  # type: ignore[no-untyped-call]
        return output, lse


def pools_in_forward(problem: AttentionProblem) -> bool:
    """Whether `run_with_cells` serves a problem, and costs less than another kernel and a pass after it."""
    return (
        problem.q.is_cuda
        and 0 not in problem.matrix
        and not problem.needs_grad
        and problem.q.dtype in (torch.bfloat16, torch.float16)
        and max(padded(problem.q.shape[-1], problem.v.shape[-1])) <= 128
        and unsupported_reason(problem) is None
        and problem.mask.split_alibi()[0].band(*problem.matrix[2:]) is not None
    )


def run_with_cells(problem: AttentionProblem, size: int) -> tuple[Tensor, Tensor, SquareCells]:
    """What `run` returns, and the weights pooled into cells of `size` queries and keys, in the same pass.

    The mask has to be a band, and no gradients flow.
    """
    with torch.cuda.device_of(problem.q):  # type: ignore[no-untyped-call]
        output, lse, _, _, cells = forward(problem, cell_size=size)
    assert cells is not None
    return output, lse, cells


class KernelScores(NamedTuple):
    """A kernel's arguments for turning products of q and k into masked scores."""

    negative: bool  # whether the scale is negative; kernels take the absolute value and −q
    factor: float  # of the products, in base 2 unless there is a cap
    cap: float | None  # in base 2
    slopes: Tensor | None  # (H,) of alibi
    band: Band | None  # the mask as a band, if it is one
    mask: Mask  # without alibi


def scores_of(
    mask: Mask, scale: float, softcap: float | None, T: int, S: int, device: torch.device
) -> KernelScores:
    """The kernel arguments for a mask, a scale and a soft cap, for T queries and S keys."""
    unbiased, slopes = mask.split_alibi()
    if slopes is not None:
        slopes = slopes.to(device, torch.float32).contiguous()
    log2e = math.log2(math.e)
    # With a cap, tanh takes the plain quotient, and the cap itself carries the factor log2 e.
    factor, cap = (abs(scale) * log2e, None) if softcap is None else (abs(scale) / softcap, softcap * log2e)
    return KernelScores(scale < 0, factor, cap, slopes, unbiased.band(T, S), unbiased)


class KernelMap(NamedTuple):
    """A map as the kernels that reduce it take it: its weights are exp(score − lse)."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    lse: Tensor  # (B, H, T)
    mask: Mask
    scale: float
    softcap: float | None

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """The shape of the attention matrix, (B, H, T, S)."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def group(self) -> int:
        """The number of query heads that read the same key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    def scores(self) -> KernelScores:
        """The kernel arguments for its mask, scale and soft cap."""
        return scores_of(self.mask, self.scale, self.softcap, *self.matrix[2:], self.q.device)

    def signed_q(self) -> Tensor:
        """q, or −q under a negative scale, of which kernels take the absolute value."""
        return -self.q if self.scale < 0 else self.q


def visible_blocks(
    mask: Mask, shape: tuple[int, int, int, int], rows: int, cols: int, device: torch.device
) -> VisibleBlocks:
    """The visible blocks of a mask, in blocks of rows × cols, cached on the mask."""
    return memoize_on_mask(
        mask,
        (shape, rows, cols, device),
        lambda: find_visible_blocks(
            mask, shape, cut_into_blocks(shape[2], rows, device)[0], *cut_into_blocks(shape[3], cols, device)
        ),
    )


class Forward(NamedTuple):
    """The results of the forward pass; `top` and `log_total`, in base 2, only if a backward pass follows."""

    output: Tensor  # (B, H, T, E)
    lse: Tensor  # (B, H, T)
    top: Tensor | None  # (B, H, T) the greatest score of each row
    log_total: Tensor | None  # (B, H, T) log of the sum of exp(score − top) of each row
    cells: SquareCells | None = None


def forward(problem: AttentionProblem, for_backward: bool = False, cell_size: int | None = None) -> Forward:
    """Run the forward kernel; `for_backward` also keeps what the backward kernels need.

    With `cell_size` it also pools the weights into cells of so many queries and keys.
    """
    from regard.attention.backends.triton.forward import forward_kernel

    q, k, v = problem.q, problem.k, problem.v
    B, H, T, S = problem.matrix
    D, E = q.shape[-1], v.shape[-1]
    output = q.new_empty(B, H, T, E, dtype=v.dtype)
    if cell_size is not None and D == E and q.dtype == v.dtype:
        output = torch.empty_like(q)  # in the layout of q, as PyTorch's kernels return it
    lse = torch.empty(B, H, T, dtype=torch.float32, device=q.device)
    top, log_total = (torch.empty_like(lse) if for_backward else None for _ in range(2))
    if B * H * T == 0:
        return Forward(output, lse, top, log_total)
    scores = scores_of(problem.mask, problem.scale, problem.softcap, T, S, q.device)
    widths = padded(D, E)
    purpose = "lists" if scores.band is None else "forward" if cell_size is None else "cells"
    config = configs.choose(purpose, max(widths), q.dtype)
    lists, hides_keys = None, scores.band is not None and scores.band.hides_keys(T, S)
    # With no keys at all there are no blocks to list.
    if scores.band is None and S > 0:
        blocks = visible_blocks(scores.mask, problem.matrix, config.rows, config.cols, q.device)
        lists, hides_keys = blocks.by_row, blocks.hides_keys
    q = -q if scores.negative else q
    sinks = None if problem.sinks is None else problem.sinks.contiguous()
    tmas = [descriptor(x, config.tma, config.cols, width) for x, width in zip((k, v), widths, strict=True)]
    cells, at_once = None, B * H
    if cell_size is not None:
        cells = CellBuffers.empty(problem.matrix, cell_size, config, q.device)
        at_once = heads_at_once(problem.matrix, cell_size, config)
    for first in range(0, B * H, at_once):
        forward_kernel[(-(-T // config.rows) * min(at_once, B * H - first),)](
            q, k, v, *tmas, output, lse, top, log_total, sinks, scores.slopes, lists, scores.band or Band(),
            cells, q.stride(), k.stride(), v.stride(), output.stride(),
            H, problem.group, T, S, scores.factor, scores.cap, first,
            D, E, *widths, config.rows, config.cols, cell_size or 0, hides_keys, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    joined = None if cells is None or cell_size is None else cells.join(T, cell_size, config.rows)
    return Forward(output, lse, top, log_total, joined)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        problem = AttentionProblem(*arguments)
        output, lse, top, log_total, _ = forward(problem, for_backward=True)
        ctx.save_for_backward(problem.q, problem.k, problem.v, problem.sinks, output, top, log_total)
        ctx.others = problem.mask, problem.scale, problem.softcap
        ctx.check_mask = remember(problem.mask)
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        ctx.check_mask()
        q, k, v, sinks, output, top, log_total = ctx.saved_tensors
        mask, scale, softcap = ctx.others
        problem = AttentionProblem(q, k, v, mask, scale, softcap, sinks, 0.0)
        q_grad, k_grad, v_grad, sinks_grad = backward(problem, output, top, log_total, grad)
        return q_grad, k_grad, v_grad, None, None, None, sinks_grad, None


def backward(
    problem: AttentionProblem, output: Tensor, top: Tensor, log_total: Tensor, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k, v and sinks, from the gradient `grad` (B, H, T, E) of the output."""
    from regard.attention.backends.triton.backward import keys_kernel, prepare_kernel, queries_kernel

    q, k, v, sinks = problem.q, problem.k, problem.v, problem.sinks
    B, H, T, S = problem.matrix
    G, D, E = k.shape[1], q.shape[-1], v.shape[-1]
    q_grad, k_grad, v_grad = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if q.numel() * v.numel() == 0:
        return q_grad, k_grad, v_grad, None if sinks is None else torch.zeros_like(sinks)

    level, delta = torch.empty_like(top), torch.empty_like(top)
    widths = padded(D, E)
    prepare_kernel[(-(-T // 64) * B * H,)](
        output, grad, top, level, delta, output.stride(), grad.stride(), H, T, E, widths[1], 64
    )
    scores = scores_of(problem.mask, problem.scale, problem.softcap, T, S, q.device)
    row_lists = col_lists = None
    hides_keys = scores.band is not None and scores.band.hides_keys(T, S)
    if scores.band is None:
        by_rows = by_cols = configs.choose("lists backward", max(widths), q.dtype)
        blocks = visible_blocks(scores.mask, problem.matrix, by_rows.rows, by_rows.cols, q.device)
        row_lists, col_lists, hides_keys = blocks.by_row, blocks.by_col, blocks.hides_keys
    else:
        by_rows, by_cols = (configs.choose(purpose, max(widths), q.dtype) for purpose in ("queries", "keys"))
    band = scores.band or Band()
    q = -q if scores.negative else q
    steps = [x.stride() for x in (q, k, v, grad)]
    sizes = T, S, scores.factor, scores.cap
    queries_kernel[(-(-T // by_rows.rows) * B * H,)](
        q, k, v, grad,
        descriptor(k, by_rows.tma, by_rows.cols, widths[0]),
        descriptor(v, by_rows.tma, by_rows.cols, widths[1]),
        level, log_total, delta, q_grad, scores.slopes, row_lists, band,
        *steps, q_grad.stride(), H, problem.group, *sizes, problem.scale,
        D, E, *widths, by_rows.rows, by_rows.cols, hides_keys, configs.PRECISION,
        num_warps=by_rows.warps, num_stages=by_rows.stages,
    )  # fmt: skip
    keys_kernel[(-(-S // by_cols.cols) * B * G,)](
        q, k, v, grad,
        descriptor(q, by_cols.tma, by_cols.rows, widths[0]),
        descriptor(grad, by_cols.tma, by_cols.rows, widths[1]),
        level, log_total, delta, k_grad, v_grad, scores.slopes, col_lists, band,
        *steps, k_grad.stride(), v_grad.stride(), G, problem.group, *sizes, abs(problem.scale),
        D, E, *widths, by_cols.rows, by_cols.cols, configs.PRECISION,
        num_warps=by_cols.warps, num_stages=by_cols.stages,
    )  # fmt: skip
    sinks_grad = None
    if sinks is not None:
        # A sink has a weight but no value, so its gradient is −weight · Σ out · grad.
        # −inf − −inf, of a query that sees no key beside a sink of −inf, is NaN and counts as 0.
        share = torch.exp2(sinks.float().view(1, H, 1) * math.log2(math.e) - top - log_total).nan_to_num(0.0)
        sinks_grad = -(share * delta).sum((0, 2)).to(sinks.dtype)
    return q_grad, k_grad, v_grad, sinks_grad


def padded(*widths: int) -> list[int]:
    """Widths rounded up to what the tensor cores need: powers of two of at least 16.

    Triton 3.6 on Hopper computes wrong numbers in partly filled blocks of 32 (24 in 32 beside 40 in 64), so
    those are padded to 64.
    """
    powers = [max(16, 1 << (width - 1).bit_length()) for width in widths]
    return [64 if power == 32 and width < 32 else power for power, width in zip(powers, widths, strict=True)]


def descriptor(x: Tensor, wanted: bool, rows: int, width: int) -> Any:
    """A tensor descriptor for blocks of rows × width, or None if unwanted or if the layout forbids it."""
    # The hardware's tensor memory accelerator needs addresses and strides of a multiple of 16 bytes.
    if not wanted or x.numel() == 0 or x.data_ptr() % 16 or x.stride(-1) != 1:
        return None
    if x.shape[-1] != width:  # a block wider than the tensor causes a hardware fault
        return None
    if any(step * x.itemsize % 16 or step == 0 for step in x.stride()[:-1]):
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, width])
