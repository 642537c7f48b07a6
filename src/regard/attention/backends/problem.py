"""`AttentionProblem`: the checked arguments of an attention, as every backend takes them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.inputs import check_inputs
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal
from regard.attention.tensors import is_transformed


class AttentionProblem(NamedTuple):
    """The arguments of an attention, checked and in four dimensions."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    mask: Mask  # simplified for these sizes: `full` where every key is visible
    scale: float
    softcap: float | None
    sinks: Tensor | None  # (H,)
    dropout: float

    @property
    def group(self) -> int:
        """The number of query heads that read the same key/value head."""
        # max: with no heads at all H is 0, too, and 0 // 0 would raise.
        return self.q.shape[1] // max(self.k.shape[1], 1)

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """The shape of the attention matrix, which no backend builds, (B, H, T, S)."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def needs_grad(self) -> bool:
        """Whether gradients have to flow to q, k, v or sinks."""
        tensors = (self.q, self.k, self.v) if self.sinks is None else (self.q, self.k, self.v, self.sinks)
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    @property
    def transformed(self) -> bool:
        """Whether it runs inside `torch.func.vmap`, `grad` or another transformation."""
        tensors = (self.q, self.k, self.v) if self.sinks is None else (self.q, self.k, self.v, self.sinks)
        return any(is_transformed(x) for x in tensors)

    @property
    def bias_needs_grad(self) -> bool:
        """Whether gradients have to flow to what the mask adds to the scores."""
        return torch.is_grad_enabled() and self.mask.trainable


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> AttentionProblem:
    """Check the arguments of `attend` and reshape its tensors to (B, heads, length, width)."""
    shape, mask, scale = check_inputs(
        q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    q, k, v = with_four_dimensions(q, k, v)
    # The two masks that need no table of blocks come first: this runs on every call.
    # One query under causal sees every key.
    if mask is full or (mask is causal and shape.T == 1):
        mask = full
    # causal over as many queries as keys is already in its simplest form.
    elif mask is not causal or shape.T != shape.S:
        mask = mask.simplified(shape.matrix)
    return AttentionProblem(q, k, v, mask, scale, softcap, sinks, dropout)


def with_four_dimensions(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Checked tensors of any rank as (B, heads, length, width)."""
    if q.ndim == 4:
        return q, k, v
    B, heads = math.prod(q.shape[:-3]), [x.shape[-3] if q.ndim > 2 else 1 for x in (q, k, v)]
    q, k, v = (x.reshape(B, n, *x.shape[-2:]) for x, n in zip((q, k, v), heads, strict=True))
    return q, k, v
