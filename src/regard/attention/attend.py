"""`attend`: the operation, on the fastest path that can serve it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.rules import Mask
from regard.attention.steps import trace


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q on k and v: the output, and with `return_lse` the row log-sum-exp too."""
    steps = trace(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
    return (steps.output, torch.logsumexp(steps.masked, -1)) if return_lse else steps.output
