"""Launches the Triton kernel for statistics: entropy, distance, largest score; attention received by keys."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import (
    descriptor,
    padded,
    scores_of,
    visible_blocks,
)
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask


def statistics(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    first_position: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Statistics of the weights exp(score − lse) of q (B, H, T, D) on k (B, G, S, D), in float32.

    Returns the entropy (B, H, T) in nats, the mean distance (B, H, T) from query i at position i +
    first_position back to its keys, the attention received by each key (B, H, S), to 2⁻⁴⁰, and the largest
    score (B, H, T). A NaN in one row makes the received attention of its head NaN.
    """
    from regard.attention.backends.triton.statistics_kernel import UNITS

    received = torch.zeros(*q.shape[:2], k.shape[2], dtype=torch.int64, device=q.device)
    largest = torch.empty_like(lse, memory_format=torch.contiguous_format)
    options = (mask, scale, softcap, first_position)
    entropy, distance = _launch("statistics", q, k, lse, *options, received, largest)
    # float64, since an integer of 2⁴⁰ units has more digits than float32.
    total = received.to(torch.float64).div_(UNITS.value).float()
    # Integers have no NaN: it would be lost in the sum.
    total.masked_fill_(entropy.isnan().any(-1, keepdim=True), torch.nan)
    return entropy, distance, total, largest.add_(lse)  # they were largest logarithms of weights


def row_statistics(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    first_position: int,
) -> tuple[Tensor, Tensor]:
    """Entropy and distance as `statistics` returns them, in less time than with the attention received."""
    return _launch("row statistics", q, k, lse, mask, scale, softcap, first_position, None, None)


def _launch(
    purpose: str,
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    first_position: int,
    received: Tensor | None,
    largest: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Entropy and distance.

    Unless they are None, what keys receive is added to `received`, in integers, and the logarithm of the
    largest weight of every row is written to `largest`.
    """
    from regard.attention.backends.triton.statistics_kernel import statistics_kernel

    B, H, T, D = q.shape
    G, S = k.shape[1], k.shape[2]
    scores = scores_of(mask, scale, softcap, T, S, q.device)
    q = -q if scores.negative else q
    (width,) = padded(D)
    config = configs.choose(purpose, width, q.dtype)
    lists = None
    if scores.band is None:
        lists = visible_blocks(scores.mask, (B, H, T, S), config.rows, config.cols, q.device).by_row()
    entropy, distance = torch.empty(2, B, H, T, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        statistics_kernel[(-(-T // config.rows) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), lse.contiguous(),
            entropy, distance, received, largest, scores.slopes, lists, scores.band or Band(),
            q.stride(), k.stride(), H, H // G, T, S, scores.factor, scores.cap, first_position,
            D, width, config.rows, config.cols, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return entropy, distance
