"""Checks of the stages' arguments, and masks as boolean tensors.

Errors name the argument, what was expected and what it got. Nothing here computes attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.inputs import check_inputs
from regard.attention.masks.base import Mask


def check_dropout(dropout: float) -> float:
    """Return `dropout` if it is a probability, or raise ValueError."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
    return dropout


def head_width(d_out: int, num_heads: int) -> int:
    """The width of one head, `d_out // num_heads`; ValueError if `num_heads` does not divide `d_out`."""
    d_out, num_heads = check_whole_number("d_out", d_out), check_whole_number("num_heads", num_heads)
    if d_out % num_heads:
        raise ValueError(
            f"num_heads: expected a number that divides d_out = {d_out}, got {num_heads} "
            f"(remainder {d_out % num_heads})"
        )
    return d_out // num_heads


def check_sequence(name: str, x: Tensor, layer: nn.Linear, longest: int | None = None) -> None:
    """Raise ValueError unless x is a sequence (…, T, width) that `layer` takes, with T at most `longest`."""
    width, weight = layer.in_features, layer.weight
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.ndim < 2:
        raise ValueError(
            f"{name}: expected (batch, length, {width}) or (length, {width}), got {tuple(x.shape)}"
        )
    if x.shape[-1] != width:
        raise ValueError(f"{name}: expected width {width} in the last dimension, got {tuple(x.shape)}")
    if longest is not None and x.shape[-2] > longest:
        raise ValueError(
            f"{name}: expected a length of at most {longest}, the maximum it was built for, got {x.shape[-2]}"
        )
    if x.device != weight.device:
        raise ValueError(f"{name}: expected it on {weight.device}, where the weights are, got {x.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"{name}: expected {weight.dtype}, as the weights have, got {x.dtype}")


def visible_keys(mask: Mask | Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Which of the keys k (B, S, D) each query of q (B, T, D) sees: boolean, (T, S) or (B, T, S).

    `mask` is a mask such as `regard.causal`, or a boolean tensor (T, S) or (B, T, S), True = visible.
    """
    if isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.unsqueeze(-3)  # (B, 1, T, S)
    inputs = check_inputs(
        q.unsqueeze(-3), k.unsqueeze(-3), k.unsqueeze(-3), mask=mask
    )  # (B, 1, T, D), (B, 1, S, D)
    if inputs.mask.biased:
        raise ValueError(
            f"mask: expected one that tells which keys are visible, but {inputs.mask} adds to scores"
        )
    T, S = inputs.shape.T, inputs.shape.S
    tile = inputs.mask.tile(slice(0, T), slice(0, S), inputs.shape.matrix, device=q.device)
    return tile if tile.ndim == 2 else inputs.shape.fit(tile).squeeze(-3)
