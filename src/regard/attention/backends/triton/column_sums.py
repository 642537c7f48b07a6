"""Launches the Triton kernel that sums the columns of an attention matrix, each row times a weight: wᵀA."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import (
    KernelMap,
    KernelScores,
    descriptor,
    padded,
    visible_blocks,
)
from regard.attention.masks.block_lists import (
    BlockLists,
    cut_into_blocks,
    find_bounded_blocks,
    find_visible_blocks,
)
from regard.attention.masks.grid import Band


def column_sums(m: KernelMap, row_weights: Tensor, rows: Tensor | None = None) -> Tensor:
    """The weights of a map, summed over the queries: (B, H, S).

    Each row counts `row_weights` (B, H, T) times, of either sign; `rows`, if given, are the only ones that
    are computed, in increasing order. The result is in float32 and has the same bits every time.
    """
    from regard.attention.backends.triton.column_sums_kernel import column_sums_kernel

    B, H, T, S = m.matrix
    scores, q, k = m.scores(), m.signed_q(), m.k
    (width,) = padded(q.shape[-1])
    config = configs.choose("column sums", width, q.dtype)
    row_index = None
    if rows is not None:
        gap = rows.new_full((-len(rows) % config.rows,), -1)
        row_index = torch.cat([rows, gap]).int()
    sums = torch.empty(B, H, S, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        column_sums_kernel[(-(-S // config.cols) * B * H,)](
            q, k, descriptor(q, config.tma, config.rows, width), m.lse.contiguous(),
            row_weights.float().contiguous(), sums,
            scores.slopes, _visit(scores, m.matrix, row_index, config, q.device), scores.band or Band(),
            row_index, q.stride(), k.stride(), H, m.group, T, S, scores.factor, scores.cap,
            q.shape[-1], width, config.rows, config.cols, scores.band is None, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return sums


def _visit(
    scores: KernelScores,
    shape: tuple[int, int, int, int],
    row_index: Tensor | None,
    config: configs.KernelConfig,
    device: torch.device,
) -> BlockLists | None:
    """The query blocks of each key block, or None if the kernel finds them by arithmetic."""
    if row_index is None:
        if scores.band is not None:
            return None
        return visible_blocks(scores.mask, shape, config.rows, config.cols, device).by_col
    index = row_index.long().view(-1, config.rows)
    # A gap (−1) takes the index before it, so that a block's last index is one that exists.
    blocks = index.cummax(-1).values, *cut_into_blocks(shape[3], config.cols, device)
    if scores.band is None:
        return find_visible_blocks(scores.mask, shape, *blocks).by_col
    return find_bounded_blocks(scores.mask, shape, *blocks).by_col
