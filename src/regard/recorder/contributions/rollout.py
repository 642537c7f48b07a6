"""Attention rollout: how much of each token reaches a position through all layers.

A layer passes on half of what it is given by its residual connection and half by attention: ½ (A + I), where
A is the mean of its heads' weights (Abnar and Zuidema, 2020), or the weights times the size of what each key
adds, with rows that sum to 1. The product over the layers is computed for one position, or the mean of some,
as a vector, from the last layer to the first: one pass wᵀA for each layer, and no matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.layer import Layer


def roll_out(
    maps: Sequence[AttentionMap], positions: int | slice | Tensor, norms: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the share (T,) of each token in what reaches a position, or the mean of several, in float64.

    `maps` are those of all layers for one text, (H, T, T) each, the first layer first. `norms`, (H, T) for
    each layer, multiply the weights on each key: ‖W_h v_j‖.
    """
    T = maps[0].shape[-1]
    shares = torch.zeros(T, dtype=torch.float64, device="cpu")
    shares[positions] = 1.0
    shares /= shares.sum()
    for i in reversed(range(len(maps))):
        shares = _step(shares, maps[i], None if norms is None else norms[i])
    return shares


def _step(shares: Tensor, m: AttentionMap, norms: Tensor | None) -> Tensor:
    """Pass the shares (T,) of a layer's outputs on to its inputs.

    The rows of a layer's mean weights sum to 1, except for rows without a visible key and those of a sink
    logit. They are divided by their sums, so that what a sink logit takes is spread over the keys; a row
    whose sum is 0 passes everything on by its residual connection.
    """
    H = m.shape[0]
    sums = _row_sums(m, norms)  # (T,)
    is_empty = ~(sums > 0)
    w = torch.where(is_empty, 0.0, shares / sums)  # (T,)
    row_weights = w.to(m.device, m.dtype).expand(H, -1)
    received = m.received(row_weights)  # (H, T)
    if norms is not None:
        received = received * norms.to(received.device, received.dtype)
    attended = received.sum(0).to("cpu", torch.float64)
    return 0.5 * (attended + shares + torch.where(is_empty, shares, 0.0))


def _row_sums(m: AttentionMap, norms: Tensor | None) -> Tensor:
    """Return the sum (T,) of every row over its keys and over all heads, each key times its norm."""
    H, T = m.shape[:2]
    if norms is None and m.sinks is None:
        sums = m.lse.reshape(H, T) > -torch.inf  # a row sums to 1, or has no visible key
    else:
        ones = torch.ones(H, T, dtype=m.dtype, device=m.device)
        sums = m.weighted(ones if norms is None else norms.to(ones)).row_sums()  # (H, T)
    return sums.to(torch.float64).sum(0).cpu()


def select_stack(
    every: Sequence[Layer], stack: str | None, *, is_whole: bool, not_captured: Sequence[str]
) -> list[Layer]:
    """Return the layers of a stack, all of them with all their heads; otherwise raise a ValueError.

    `is_whole` says whether all layers and heads were selected, and `not_captured` names the modules that
    mix tokens and could not be captured.
    """
    if not is_whole:
        raise ValueError(
            "rollout: expected all layers and heads of the model, got a selection: capture again without "
            "layers= and heads="
        )
    if not_captured:
        raise ValueError(
            f"rollout: expected all layers of the model, but {', '.join(not_captured[:3])} could not be "
            "captured: see seen.missing and seen.other_mixers"
        )
    stacks = list(dict.fromkeys(layer.stack for layer in every))
    if stack is None and len(stacks) > 1:
        raise ValueError(f"stack: expected one of {stacks}, since the model has several, got None")
    layers = [layer for layer in every if stack is None or layer.stack == stack]
    if not layers:
        raise ValueError(f"stack: expected one of {stacks}, got {stack!r}")
    for layer in layers:
        layer.check_tokens("rollout")
    shapes = {layer.shape[2:] for layer in layers}
    if len(shapes) > 1 or any(T != S for T, S in shapes):
        raise ValueError(
            "rollout: expected layers in which every token attends to the same tokens, got "
            f"{', '.join(f'{T}×{S}' for T, S in sorted(shapes))}"
        )
    return layers
