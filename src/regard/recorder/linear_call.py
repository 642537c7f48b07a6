"""`LinearCall`: the inputs and the output of one call of a linear-attention or state-space recurrence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.maps import LinearAttentionMap, linear_attention_map


class LinearCall(NamedTuple):
    """The inputs of one call, as `regard.linear_attention_map` names them, and what the model computed."""

    q: Tensor  # (B, G, T, D)
    k: Tensor  # (B, G, T, D)
    v: Tensor  # (B, H, T, E)
    output: Tensor  # (B, H, T, E), before any norm, gate or projection
    decay: Tensor | None  # (B, H, T) or (B, H, T, D)
    beta: Tensor | None = None  # (B, H, T)
    skip: Tensor | None = None  # (H,)
    delta_rule: bool = False
    scale: float = 1.0
    qk_norm: float | None = None
    initial_state: Tensor | None = None  # (B, H, D, E), None for zeros
    final_state: Tensor | None = None  # (B, H, D, E), None if it was not returned
    gate: Tensor | None = None  # (B, H, T, E), by which the kernel has multiplied the output
    convolution: int | None = None  # tokens over which a short convolution ran before
    problem: str | None = None  # a reason why the call cannot be certified, if one is known

    def attention_map(self) -> LinearAttentionMap:
        """Return the map of the call, without gradients."""
        return linear_attention_map(
            self.q,
            self.k,
            decay=self.decay,
            beta=self.beta,
            delta_rule=self.delta_rule,
            skip=self.skip,
            scale=self.scale,
            qk_norm=self.qk_norm,
        )
