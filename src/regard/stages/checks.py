"""What the stages ask of their arguments. Errors name the argument, what was expected and what came."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_size(name: str, size: int) -> int:
    """A width, a length or a number of heads: a whole number of at least 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {size!r}")
    return size


def check_dropout(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
    return dropout


def head_width(d_out: int, num_heads: int) -> int:
    """The width of one head, `d_out // num_heads`, which must leave no remainder."""
    check_size("d_out", d_out)
    check_size("num_heads", num_heads)
    if d_out % num_heads:
        raise ValueError(
            f"num_heads: expected a number that divides d_out = {d_out}, got {num_heads} "
            f"(remainder {d_out % num_heads})"
        )
    return d_out // num_heads


def check_sequence(name: str, x: Tensor, layer: nn.Linear, longest: int | None = None) -> None:
    """A sequence (…, T, width) that `layer` can read, no longer than `longest`."""
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
