"""Query heads that share keys, packed into the axis of the tokens.

Since 5.23 Transformers computes a single query token (B, H, 1, D) of grouped heads under a mask as
(B, G, H / G, D), so that the keys of G heads need not be repeated (`pack_gqa`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def are_packed(shape: Sequence[int] | None, q: Tensor, k: Tensor) -> bool:
    """Whether queries that the model passed as (B, H, 1, D), its `shape`, are now q, (B, G, H / G, D)."""
    return (
        shape is not None
        and q.ndim == k.ndim == len(shape) == 4
        and 1 < q.shape[2] == shape[1] // k.shape[1]
        and (q.shape[1] * q.shape[2], 1) == tuple(shape[1:3])
    )


def unpack(
    tensors: tuple[Tensor, ...], mask: Tensor | None, lse: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Return q, k, v, the output, the mask and the lse with the heads of the queries on their own axis."""
    q, k, v, output = tensors
    # A mask that all heads share was not packed.
    if mask is not None and mask.shape[1:3] == q.shape[1:3]:
        mask = _with_heads_apart(mask)
    lse = None if lse is None else _with_heads_apart(lse)
    return (_with_heads_apart(q), k, v, _with_heads_apart(output)), mask, lse


def _with_heads_apart(x: Tensor) -> Tensor:
    """Return (B, G, H / G, …) as (B, H, 1, …)."""
    return x.flatten(1, 2).unsqueeze(2)
