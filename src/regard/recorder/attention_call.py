"""`AttentionCall`: one attention as a model computed it, whoever computed it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask


class AttentionCall(NamedTuple):
    """The inputs of one attention and what the model's own implementation made of them."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    output: Tensor  # (B, H, T, E), before any projection
    lse: Tensor  # (B, H, T), −inf for a query that may look at nothing
    mask: Mask
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    weights: Tensor | None = None  # (B, H, T, S), where the implementation gives them
    own_lse: bool = False  # whether lse is the implementation's own, and not computed from q and k beside it
    soft_blind: bool = False  # whether finite numbers hide everything from some query
    problem: str | None = None  # why it cannot be certified, where that is known


class Unreadable(NamedTuple):
    """A call of an attention whose arguments could not be understood."""

    reason: str


def dropout_problem(p: float) -> str | None:
    """Why an attention with dropout cannot be certified."""
    return f"dropout {p} was on, which no map shows" if p else None
