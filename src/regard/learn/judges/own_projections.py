"""The right output for a learner's own projections, computed by PyTorch's attention.

The checker leaves what surrounds the attention alone, such as a residual; a lesson asks for an exact output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.learn.judges.tables.verdicts import attend, largest_difference
from regard.learn.lesson import Outcome

TOLERANCE = 1e-5


def find_wrong_output(
    name: str,
    layer: Any,
    x: Tensor,
    num_heads: int,
    formula: str,
    turn: Callable[[Tensor], Tensor] = lambda t: t,
) -> Outcome | None:
    """Compare the output of a causal layer with that of its own projections; return what is wrong, or None.

    Arguments:
        name: of the task.
        layer: the learner's module, with `W_q`, `W_k`, `W_v` and perhaps `W_o`.
        x: tokens (B, T, d_model).
        num_heads: the number of its heads.
        formula: what the output should be, in the lesson's names.
        turn: what queries and keys (B, H, T, head_dim) go through.
    """
    expected = causal_output(layer, x, num_heads, turn, turn, lambda t: t)
    with torch.no_grad():
        difference = largest_difference(attend(layer.eval(), x)[0], expected)
    if difference < TOLERANCE:
        return None
    said = f"the weights are right; the output differs from {formula} by up to {difference:.2g}"
    return Outcome(name, "wrong", said, hint=f"out is {formula}, and nothing is added to it")


def causal_output(layer: Any, x: Tensor, num_heads: int, *turns: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the output of a causal layer's own projections, its q, k and v each turned by one of `turns`."""
    B, T, _ = x.shape
    with torch.no_grad():
        projections = zip((layer.W_q, layer.W_k, layer.W_v), turns, strict=True)
        q, k, v = (turn(W(x).view(B, T, num_heads, -1).transpose(1, 2)) for W, turn in projections)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged = heads.transpose(1, 2).reshape(B, T, -1)
        return layer.W_o(merged) if hasattr(layer, "W_o") else merged
