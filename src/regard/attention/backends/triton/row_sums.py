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
    ids: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The weights exp(score − lse) of q (B, H, T, D) on k (B, G, S, D), summed over the keys: (B, H, T).

    Only the keys that `mask` shows are summed, which may be fewer than `lse` counts. `gain` (B, H, S), if
    given, multiplies the weights of each key. `ids`, if given, are two tables of whole numbers (B, S), of the
    positions as queries and as keys: only earlier keys with the query's number are summed. The result is in
    float32 and has the same bits every time.
    """
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
    own_and_key_ids = (None, None) if ids is None else tuple(x.expand(B, -1).contiguous() for x in ids)
    sums = torch.empty(B, H, T, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        row_sums_kernel[(-(-T // config.rows) * B * H,)](
            q, k, descriptor(k, config.tma, config.cols, width), lse.contiguous(),
            None if gain is None else gain.float().contiguous(), *own_and_key_ids, sums,
            scores.slopes, lists, scores.band or Band(),
            q.stride(), k.stride(), H, H // G, T, S, scores.factor, scores.cap,
            D, width, config.rows, config.cols, configs.PRECISION,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return sums
