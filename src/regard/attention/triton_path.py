"""Attention by Triton's kernels: when they can serve, and the step from tensors to kernel and back.

Triton itself is loaded only when a kernel runs: importing this file needs nothing but PyTorch.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention import triton_configs as configs
from regard.attention.bands import Band, band_of, split_alibi
from regard.attention.block_lists import Survey, blocks_of, survey
from regard.attention.problem import Problem
from regard.attention.rules import Mask

WIDEST = 256


def refuses(problem: Problem) -> str | None:
    """Why Triton cannot serve a problem, in a phrase, or None if it can."""
    if problem.dropout > 0:
        return "does not do dropout"
    if problem.v.shape[-1] > WIDEST:
        return f"needs widths up to {WIDEST}, not {problem.v.shape[-1]}"
    return refuses_scores(problem.q, problem.mask)


def refuses_scores(q: Tensor, mask: Mask) -> str | None:
    """Why Triton cannot score queries under a mask, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"needs a CUDA device, not {q.device.type}"
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"needs bfloat16, float16 or float32, not {q.dtype}".replace("torch.", "")
    if q.shape[-1] > WIDEST:
        return f"needs widths up to {WIDEST}, not {q.shape[-1]}"
    rule, slopes = split_alibi(mask)
    if rule.biased or (slopes is not None and slopes.requires_grad):
        return f"adds no numbers to the scores but alibi's, and {mask} does"
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, E) and the row log-sum-exp (B, H, T), detached."""
    if problem.needs_grad:
        from regard.attention.triton_backward import Attention

        output, lse = Attention.apply(*problem)
        return output, lse
    return forward(problem)


class Scores(NamedTuple):
    """How a kernel turns products of q and k into scores, and which it may use: its arguments on that."""

    negative: bool
    factor: float  # of the products, in base 2 unless there is a cap
    cap: float | None  # in base 2
    slopes: Tensor | None
    band: Band | None
    rule: Mask


def scores_of(
    mask: Mask, scale: float, softcap: float | None, T: int, S: int, device: torch.device
) -> Scores:
    rule, slopes = split_alibi(mask)
    if slopes is not None:
        slopes = slopes.to(device, torch.float32)
    log2e = math.log2(math.e)
    factor, cap = (abs(scale) * log2e, None) if softcap is None else (abs(scale) / softcap, softcap * log2e)
    return Scores(scale < 0, factor, cap, slopes, band_of(rule, T, S), rule)


def surveyed(
    rule: Mask, shape: tuple[int, int, int, int], rows: int, cols: int, device: torch.device
) -> Survey:
    """What a mask allows in blocks of rows × cols."""
    index, _ = blocks_of(shape[2], rows, device)
    return survey(rule, shape, index, *blocks_of(shape[3], cols, device))


def forward(problem: Problem) -> tuple[Tensor, Tensor]:
    from regard.attention.triton_forward import forward_kernel

    q, k, v = problem.q, problem.k, problem.v
    B, H, T, S = problem.matrix
    D, E = q.shape[-1], v.shape[-1]
    output = torch.empty(B, H, T, E, dtype=v.dtype, device=q.device)
    lse = torch.empty(B, H, T, dtype=torch.float32, device=q.device)
    if B * H * T == 0:
        return output, lse
    scores = scores_of(problem.mask, problem.scale, problem.softcap, T, S, q.device)
    widths = padded(D, E)
    config = configs.choose("forward" if scores.band else "lists", max(widths), q.dtype)
    lists = None
    if scores.band is None and S > 0:
        lists = surveyed(scores.rule, problem.matrix, config.rows, config.cols, q.device).by_row()
    forward_kernel[(-(-T // config.rows) * B * H,)](
        -q if scores.negative else q,
        k,
        v,
        descriptor(k, config, widths[0]),
        descriptor(v, config, widths[1]),
        output,
        lse,
        problem.sinks,
        scores.slopes,
        lists,
        scores.band or Band(),
        q.stride(),
        k.stride(),
        v.stride(),
        output.stride(),
        H,
        problem.group,
        T,
        S,
        scores.factor,
        scores.cap,
        D,
        E,
        *widths,
        config.rows,
        config.cols,
        configs.PRECISION,
        config.specialize,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return output, lse


def padded(*widths: int) -> list[int]:
    """Widths as the tensor cores want them: powers of two of at least 16."""
    return [max(16, 1 << (width - 1).bit_length()) for width in widths]


def descriptor(x: Tensor, config: configs.Config, width: int) -> Any:
    """A tensor descriptor for blocks of keys, or None where it is not wanted or the layout does not allow it."""
    if not config.tma or x.numel() == 0 or x.data_ptr() % 16 or x.stride(-1) != 1:
        return None
    if any(step * x.itemsize % 16 or step == 0 for step in x.stride()[:-1]):
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, config.cols, width])
