"""Checks the arguments of attention, once for every backend.

Errors name the argument, what was expected and what it got. Nothing here computes attention.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_scale, check_softcap, is_number
from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import as_mask
from regard.attention.tensors import check_floats, check_tensor


class Shape(NamedTuple):
    """Sizes: batch B, query heads H, key/value heads G, queries T, keys S, key width D, value width E."""

    lead: tuple[int, ...]  # the dimensions before (T, D) in q: (B, H), or fewer or more
    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    E: int

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """The shape of the attention matrix, (B, H, T, S)."""
        return self.B, self.H, self.T, self.S

    @property
    def group(self) -> int:
        """The number of query heads that read the same key/value head."""
        return self.H // self.G if self.G else 1

    def fit(self, tile: Tensor) -> Tensor:
        """A tile of a mask, (rows, cols) or (B, H, rows, cols), shaped to broadcast with q's rank."""
        if tile.ndim == 2 or len(self.lead) == 2:
            return tile
        if len(self.lead) > 2 and tile.shape[0] != 1:
            return tile.view(*self.lead[:-1], *tile.shape[1:])
        return tile[0] if len(self.lead) else tile[0, 0]


class Inputs(NamedTuple):
    """Checked arguments: the sizes, the mask as a `Mask`, and the scale as a number."""

    shape: Shape
    mask: Mask
    scale: float


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> Inputs:
    """Check the arguments of an attention, which are those of `attend`; a map has no v and passes k.

    Raises ValueError that names the argument which is wrong.
    """
    # q first, since the others are compared with it.
    for name, x in {"q": q, "k": k, "v": v}.items():
        _check_tensor(name, x, q)
    _check_gradients({"q": q, "k": k, "v": v, "sinks": sinks})

    # Widths and lengths.
    lead, D = tuple(q.shape[:-2]), q.shape[-1]
    T, S = q.shape[-2], k.shape[-2]
    if k.shape[-1] != D:
        raise ValueError(f"k: expected width {D}, as q has, got {tuple(k.shape)} beside q {tuple(q.shape)}")
    if D == 0:
        raise ValueError(f"q: expected a width of at least 1, got {tuple(q.shape)}")
    if v.shape[-2] != S:
        raise ValueError(f"v: expected {S} keys, as k has, got {tuple(v.shape)} beside k {tuple(k.shape)}")

    # Batch and heads.
    if tuple(v.shape[:-2]) != tuple(k.shape[:-2]):
        raise ValueError(f"v: expected {tuple(k.shape[:-2])} before (S, E), as k has, got {tuple(v.shape)}")
    if tuple(k.shape[:-3]) != lead[:-1]:
        raise ValueError(
            f"k: expected batch {lead[:-1]}, as q has, got {tuple(k.shape)} beside {tuple(q.shape)}"
        )
    H, G = (lead[-1], k.shape[-3]) if lead else (1, 1)
    if (G == 0) != (H == 0) or (G and H % G):
        raise ValueError(
            f"k: expected a number of heads that divides q's {H}, got {G}; "
            "query head h reads key/value head h // (H // G)"
        )
    shape = Shape(lead, math.prod(lead[:-1]), H, G, T, S, D, v.shape[-1])

    # The mask and the numbers.
    mask = as_batch_mask(mask, q)
    mask.check(shape.matrix)
    _check_numbers(shape, q, scale, softcap, sinks, dropout)
    return Inputs(shape, mask, D**-0.5 if scale is None else float(scale))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores and softmax are computed: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _check_tensor(name: str, x: Tensor, q: Tensor) -> None:
    check_tensor(name, x, values=False)
    if x.ndim < 2:
        raise ValueError(
            f"{name}: expected (batch, heads, length, width) or its last two, got {tuple(x.shape)}"
        )
    check_floats(name, x, values=False)
    if x.dtype != q.dtype:
        raise ValueError(f"{name}: expected {q.dtype}, as q has, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name}: expected it on {q.device}, where q is, got {x.device}")
    if x.ndim != q.ndim:
        raise ValueError(
            f"{name}: expected {q.ndim} dimensions, as q has, got {tuple(x.shape)} beside q {tuple(q.shape)}"
        )


def _check_gradients(tensors: dict[str, Tensor | None]) -> None:
    """Raise ValueError if a gradient is asked for of a tensor from inference mode, which keeps no history."""
    given = {name: x for name, x in tensors.items() if isinstance(x, Tensor)}
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in given.values()):
        return
    for name, x in given.items():
        if not torch.compiler.is_compiling() and x.is_inference():
            raise ValueError(
                f"{name}: expected a tensor from outside of torch.inference_mode(), as another one needs a "
                "gradient, got one from inside: pass .clone()"
            )


def as_batch_mask(mask: Mask | Tensor | None, q: Tensor) -> Mask:
    """A `mask=` argument for queries q as a `Mask`; masks number the batch through several dimensions."""
    if isinstance(mask, Tensor) and mask.device != q.device:
        raise ValueError(f"mask: expected it on {q.device}, where q is, got {mask.device}")
    lead = q.shape[:-2]
    # Only tensors of the full rank have a batch of several dimensions to number through.
    if not isinstance(mask, Tensor) or len(lead) < 3 or not 4 <= mask.ndim <= len(lead) + 2:
        return as_mask(mask)
    try:
        return as_mask(mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4))
    except RuntimeError:
        raise ValueError(
            f"mask: expected a batch that broadcasts to {tuple(lead[:-1])}, got {tuple(mask.shape)}"
        ) from None


def _check_numbers(
    shape: Shape, q: Tensor, scale: float | None, softcap: float | None, sinks: Tensor | None, dropout: float
) -> None:
    check_scale(scale)
    check_softcap(softcap)
    if not (is_number(dropout) and 0 <= dropout <= 1):
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
    if sinks is not None:
        check_floats("sinks", sinks, values=False)
        if tuple(sinks.shape) != (shape.H,):
            raise ValueError(f"sinks: expected ({shape.H},), one logit a head, got {tuple(sinks.shape)}")
        if sinks.device != q.device:
            raise ValueError(f"sinks: expected it on {q.device}, where q is, got {sinks.device}")
