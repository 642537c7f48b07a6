"""`AttentionCall`: the inputs and the output of one attention call, whichever implementation computed it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask


class AttentionCall(NamedTuple):
    """The inputs of one attention call and the output of the model's own implementation."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    output: Tensor  # (B, H, T, E), before any projection
    lse: Tensor  # (B, H, T), −inf for a query without a visible key
    mask: Mask
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    weights: Tensor | None = None  # (B, H, T, S), if the implementation returns them
    own_lse: bool = False  # whether lse comes from the implementation, and was not computed from q and k
    softly_masked_rows: bool = False  # whether finite biases mask every key of some query
    problem: str | None = None  # a reason why the call cannot be certified, if one is known


class UnreadableCall(NamedTuple):
    """An attention call whose arguments could not be interpreted."""

    reason: str


def dropout_problem(p: float) -> str | None:
    """Return why an attention with dropout probability `p` cannot be certified, or None if `p` is 0."""
    return f"dropout {p} was on, which a map does not show" if p else None
