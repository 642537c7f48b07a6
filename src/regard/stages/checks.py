"""Checks of the stages' arguments, and masks as boolean tensors.

Errors name the argument, what was expected and what it got. Nothing here computes attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.inputs import check_inputs
from regard.attention.masks.base import Mask


def check_settings(
    *, dropout: float = 0.0, num_heads: int = 1, positions: str | None = None, **sizes: int | None
) -> None:
    """Raise ValueError unless the settings of a stage fit together.

    `sizes` and `num_heads` are whole numbers of at least 1 (a size may be None), `dropout` is a probability,
    and `num_heads` divides the width that the heads share: `d_out` if it is given, or `d_model`. `positions`
    is "rotary", which needs heads of an even width, "alibi" or None.
    """
    for name, size in (*sizes.items(), ("num_heads", num_heads)):
        if size is not None:
            check_whole_number(name, size)
    # True is an int to Python, and no probability.
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
    shared = "d_out" if "d_out" in sizes else "d_model"
    width = sizes.get(shared) or num_heads
    if width % num_heads:
        raise ValueError(
            f"num_heads: expected a number that divides {shared} = {width}, got {num_heads} "
            f"(remainder {width % num_heads})"
        )
    if positions not in ("rotary", "alibi", None):
        raise ValueError(f'positions: expected "rotary", "alibi" or None, got {positions!r}')
    if positions == "rotary":
        check_pairs("d_model // num_heads", width // num_heads)


def check_pairs(name: str, width: int) -> None:
    """Raise ValueError unless a width is even: rotary positions turn pairs of channels."""
    if width % 2:
        raise ValueError(f"{name}: expected an even width, since channels are turned in pairs, got {width}")


def check_tokens(x: Tensor) -> None:
    """Raise ValueError unless x is a float tensor (…, T, d_model)."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        got = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x: expected a float tensor (batch, length, width) or (length, width), got {got}")


def check_sequence(name: str, x: Tensor, layer: nn.Linear | nn.Embedding, longest: int | None = None) -> None:
    """Raise ValueError unless x is a sequence (…, T, width) that `layer` takes, with T at most `longest`.

    A linear layer takes its own input width; the vectors of an embedding are added to x.
    """
    weight, width = layer.weight, layer.weight.shape[-1]
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.ndim < 2:
        raise ValueError(
            f"{name}: expected (batch, length, {width}) or (length, {width}), got {tuple(x.shape)}"
        )
    if x.shape[-1] != width:
        raise ValueError(f"{name}: expected width {width} in the last dimension, got {tuple(x.shape)}")
    _check_length(name, x.shape[-2], longest)
    if x.device != weight.device:
        raise ValueError(f"{name}: expected it on {weight.device}, where the weights are, got {x.device}")
    # Under autocast nn.Linear converts its input itself.
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"{name}: expected {weight.dtype}, as the weights have, got {x.dtype}")


def check_context(x: Tensor, context: Tensor, query: nn.Linear, key: nn.Linear) -> None:
    """Raise ValueError unless x fits the layer `query`, context the layer `key`, and their batches agree."""
    check_sequence("x", x, query)
    check_sequence("context", context, key)
    if context.shape[:-2] != x.shape[:-2]:
        raise ValueError(
            f"context: expected the batch of x, {tuple(x.shape[:-2])}, got {tuple(context.shape)} "
            f"beside x {tuple(x.shape)}"
        )


def check_cache(x: Tensor, cache: tuple[Tensor, Tensor] | None, layer: nn.Linear, num_heads: int) -> None:
    """Raise ValueError unless x fits `layer` and the cache holds two tensors (…, num_heads, S, head_dim)."""
    check_sequence("x", x, layer)
    if cache is None:
        return
    if not isinstance(cache, tuple) or len(cache) != 2 or not all(isinstance(c, Tensor) for c in cache):
        raise ValueError(f"cache: expected the cache of an earlier call, or None, got {type(cache).__name__}")
    batch, head_dim = tuple(x.shape[:-2]), layer.out_features // num_heads
    for part in cache:
        if (part.shape[:-2], part.shape[-1:]) != ((*batch, num_heads), (head_dim,)):
            expected = ", ".join(map(str, (*batch, num_heads, "length", head_dim)))
            raise ValueError(
                f"cache: expected ({expected}), got {tuple(part.shape)} beside x {tuple(x.shape)}"
            )


def check_ids(ids: Tensor, embedding: nn.Embedding, longest: int) -> None:
    """Raise ValueError unless ids (…, T) are whole numbers that `embedding` has, with T at most `longest`."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64) or ids.ndim < 1:
        got = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids: expected token ids (batch, length) or (length,), int64 or int32, got {got}")
    _check_length("ids", ids.shape[-1], longest)
    vocab_size = embedding.num_embeddings
    # min and max of no ids would raise.
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"ids: expected from 0 to {vocab_size - 1}, got from {int(ids.min())} to {int(ids.max())}"
        )


def _check_length(name: str, length: int, longest: int | None) -> None:
    if longest is not None and length > longest:
        raise ValueError(f"{name}: expected a length of at most {longest}, its maximum, got {length}")


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


def check_mask(scores: Tensor, mask: Tensor) -> None:
    """Raise ValueError unless scores are floats (…, T, S) and the mask is boolean and broadcasts to them."""
    if not scores.is_floating_point():
        raise ValueError(f"scores: expected a float tensor, got {scores.dtype}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected booleans, True = visible, got {mask.dtype}: pass .bool()")
    shapes = tuple(scores.shape), tuple(mask.shape)
    fits = len(shapes[1]) <= len(shapes[0]) and all(
        m in (1, s) for s, m in zip(shapes[0][::-1], shapes[1][::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"mask: expected a shape that broadcasts to scores {shapes[0]}, got {shapes[1]}")
