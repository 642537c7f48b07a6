"""Launches the Triton kernel that sums the rows of an attention matrix, each key times a gain: Au."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import configs
from regard.attention.backends.triton.launch import descriptor, padded, scores_of, visible_blocks
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask


def row_sums(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    gain: Tensor | None = None,
) -> Tensor:
    """The weights exp(score − lse) of q (B, H, T, D) on k (B, G, S, D), summed over the keys: (B, H, T).

    Only the keys that `mask` shows are summed, which may be fewer than `lse` counts. `gain` (B, H, S), if
    given, multiplies the weights of each key. The result is in float32 and has the same bits every time.
    """
    sums = torch.empty(*q.shape[:3], dtype=torch.float32, device=q.device)
    gain = None if gain is None else gain.float().contiguous()
    _launch(q, k, lse, mask, scale, softcap, sums, gain=gain)
    return sums


def pair_sums(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    ids: Tensor,
    key_ids: Tensor,
) -> Tensor:
    """The weights on earlier keys whose number is the query's, (2, B, H, T), by two tables in one pass.

    `ids` (B, S) are whole numbers of the positions as queries, the last T of them, and `key_ids` (2, B, S)
    two tables of the positions as keys.
    """
    sums = torch.empty(2, *q.shape[:3], dtype=torch.float32, device=q.device)
    B, S = len(q), k.shape[2]
    own, of_keys = ids.expand(B, S).contiguous(), key_ids.expand(2, B, S).contiguous()
    _launch(q, k, lse, mask, scale, softcap, sums, ids=own, key_ids=of_keys)
    return sums


def _launch(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    softcap: float | None,
    sums: Tensor,
    gain: Tensor | None = None,
    ids: Tensor | None = None,
    key_ids: Tensor | None = None,
) -> None:
    """Write the sums of the kernel's description to `sums`."""
    from regard.attention.backends.triton.row_sums_kernel import row_sums_kernel

    B, H, T, D = q.shape
    G, S = k.shape[1], k.shape[2]
    scores = scores_of(mask, scale, softcap, T, S, q.device)
    q = -q if scores.negative else q
    (width,) = padded(D)
    config = configs.choose("row sums", width, q.dtype)
    lists = None
    if scores.band is None:
        lists = visible_blocks(scores.mask, (B, H, T, S), config.rows, config.cols, q.device).by_row()
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        row_sums_kernel[(-(-T // config.rows) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), lse.contiguous(),
            gain, ids, key_ids, sums,
            scores.slopes, lists, scores.band or Band(),
            q.stride(), k.stride(), H, H // G, T, S, scores.factor, scores.cap,
            D, width, config.rows, config.cols, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
