"""Launches the Triton kernel for the weights along one diagonal of an attention matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton.launch import padded

ROWS = 32  # queries of one program


def diagonal(q: Tensor, k: Tensor, lse: Tensor, scale: float, softcap: float | None) -> Tensor:
    """The weights exp(score − lse) of q (B, H, N, D) on the keys k (B, G, N, D) of the same numbers.

    `lse` (B, H, N) is in float32 or float64, and so is the difference; the result is in float32. A mask that
    hides keys, or adds to the scores, is left to the caller.
    """
    from regard.attention.backends.triton.diagonal_kernel import diagonal_kernel

    B, H, N, D = q.shape
    weights = torch.empty(B, H, N, dtype=torch.float32, device=q.device)
    # Triton launches on the current device.
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        diagonal_kernel[(-(-N // ROWS) * B * H,)](
            q, k, lse, weights, q.stride(), k.stride(), lse.stride(), H, H // k.shape[1], N, scale, softcap,
            D, *padded(D), ROWS,
        )  # fmt: skip
    return weights
