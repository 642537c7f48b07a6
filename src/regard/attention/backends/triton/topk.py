"""Launches the Triton kernel that finds the largest weights of every row of an attention matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import descriptor, padded, scores_of, visible_blocks
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask

MOST = 64
"""The largest k: the kernel keeps k scores and keys of each row in registers."""


def topk(
    q: Tensor, k: Tensor, lse: Tensor, mask: Mask, scale: float, softcap: float | None, count: int
) -> tuple[Tensor, Tensor]:
    """The `count` largest weights exp(score − lse) of q (B, H, T, D) on k (B, G, S, D), and their keys.

    Both are (B, H, T, count), the weights in float32, largest first, and of equal ones that of the first key
    first. A key is −1 where the weight is 0.
    """
    from regard.attention.backends.triton.topk_kernel import topk_kernel

    B, H, T, D = q.shape
    G, S = k.shape[1], k.shape[2]
    scores = scores_of(mask, scale, softcap, T, S, q.device)
    q = -q if scores.negative else q
    (width,) = padded(D)
    config = configs.choose("topk", width, q.dtype)
    lists = None
    if scores.band is None:
        lists = visible_blocks(scores.mask, (B, H, T, S), config.rows, config.cols, q.device).by_row()
    weights = torch.empty(B, H, T, count, dtype=torch.float32, device=q.device)
    indices = torch.empty(B, H, T, count, dtype=torch.int64, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        topk_kernel[(-(-T // config.rows) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), lse.contiguous(), weights, indices,
            scores.slopes, lists, scores.band or Band(),
            q.stride(), k.stride(), H, H // G, T, S, scores.factor, scores.cap, count,
            max(8, 1 << (count - 1).bit_length()), D, width, config.rows, config.cols, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return weights, indices
