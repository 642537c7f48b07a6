"""Prepares a captured map for being stored: selects heads, changes its dtype and gives it memory of its own.

A model may write to the tensors that its attention used, as a static cache or a shared workspace does, and no
counter shows every such write: `.data` and NumPy are not counted, nor is anything in inference mode. So what
is kept is copied, when the evidence for it is taken.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.identity import freeze_function, identify
from regard.maps import AttentionMap, LinearAttentionMap, attention_map
from regard.recorder.attention_call import AttentionCall
from regard.recorder.placement import kv_slots
from regard.support.torch_internals import any_autocast_enabled


class ScoreSettings:
    """How a call makes scores of products, beside its mask. One map holds calls only if they do it alike."""

    def __init__(self, x: AttentionMap | LinearAttentionMap | AttentionCall) -> None:
        self.numbers = (x.scale, x.softcap)
        # Sink logits are parameters, which a training step writes to.
        self.sinks = None if x.sinks is None else x.sinks.detach().clone()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScoreSettings) or self.numbers != other.numbers:
            return False
        if self.sinks is None or other.sinks is None:
            return self.sinks is other.sinks
        return torch.equal(self.sinks, other.sinks)

    __hash__ = None  # type: ignore[assignment]


# Bounded, since a generation makes another mask at every step.
MASK_COPIES = 16
"""How many copies of the tensors in masks a recording compares a tensor with."""


class SelectedHeads(NamedTuple):
    """The map of the selected heads."""

    map: AttentionMap | LinearAttentionMap  # (B, heads, T, S)
    heads: tuple[int, ...]
    """The index of each head in the map that it comes from."""
    value_heads: list[int] | slice
    """Index of the heads of the values that these heads read, for v (B, G, S, E)."""


def select_heads(m: AttentionMap | LinearAttentionMap, heads: Sequence[int] | None) -> SelectedHeads:
    """Select heads of a map (B, H, T, S) by their indices; None selects all of them."""
    H, G = m.matrix[1], m.k.shape[1]
    if heads is None:
        return SelectedHeads(m, tuple(range(H)), slice(None))
    heads = list(heads)
    kv_heads = kv_slots([head // (H // G) for head in heads])
    fields: dict[str, Any] = {
        name: x[heads] if x.ndim == 1 else x[:, kv_heads if name in m.KEY_FIELDS else heads]
        for name, x in m.tensors().items()
    }
    if isinstance(m, LinearAttentionMap):  # whose values have all heads
        return SelectedHeads(m._with(**fields), tuple(heads), heads)
    fields["mask"] = m.mask.select(slice(None), heads)
    fields["kept"] = None if m.kept is None else m.kept.select(slice(None), heads)
    return SelectedHeads(m._with(**fields), tuple(heads), kv_heads)


def cast_map(m: AttentionMap, dtype: torch.dtype) -> AttentionMap:
    """Return the map with q and k in another dtype, and the lse that belongs to the rounded q and k."""
    q, k, lse = m.q.to(dtype), m.k.to(dtype), m.lse.to(working_dtype(dtype))
    # Rounded queries and keys have other scores.
    if torch.promote_types(dtype, m.q.dtype) != dtype:
        lse = attention_map(q, k, mask=m.mask, scale=m.scale, softcap=m.softcap, sinks=m.sinks).lse
    return m._with(q=q, k=k, lse=lse)


class MaskCopies:
    """Copies of what masks hold and a program may change later: tensors, and variables that functions read.

    Equal tensors share a copy, and functions with equal variables are one.
    """

    def __init__(self) -> None:
        self._copies: deque[Tensor] = deque(maxlen=MASK_COPIES)
        self._functions: deque[tuple[Hashable, list[Tensor], Any]] = deque(maxlen=MASK_COPIES)

    def own(self, mask: Mask) -> Mask:
        """Return the mask with tensors of its own, and with functions that read what they read now.

        A function without an identity, as one that reads a list, remains as it is: it must not change its
        answers.
        """
        owned = {name: self._own(value) for name, value in vars(mask).items()}
        changed = {name: value for name, value in owned.items() if value is not vars(mask)[name]}
        if not changed:
            return mask
        # A mask of the user's need not be a dataclass, so that `dataclasses.replace` would not serve.
        own = copy.copy(mask)
        vars(own).update(changed)
        return own

    def _own(self, value: Any) -> Any:
        if isinstance(value, Mask):
            return self.own(value)
        if isinstance(value, Tensor):
            return self._copy(value)
        tensors: list[Tensor] = []
        identity = identify(value, tensors) if isinstance(value, FunctionType) else None
        if identity is None:
            return value
        for known, _, frozen in self._functions:
            if known == identity:
                return frozen
        # While the tensors are held, no other one gets their identity.
        self._functions.append((identity, tensors, freeze_function(value, self._copy)))
        return self._functions[-1][2]

    def _copy(self, x: Tensor) -> Tensor:
        once = _without_repeats(x)
        for own in self._copies:
            alike = own.shape == once.shape and own.dtype == x.dtype and own.device == x.device
            if alike and torch.equal(own, once):
                break
        else:
            own = once.clone()
            self._copies.append(own)
        return own if own.shape == x.shape else own.expand(x.shape)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a block in which tensors keep the dtypes that they have."""
    if not any_autocast_enabled() or not torch.is_autocast_enabled(device.type):
        return nullcontext()  # a block of autocast costs more than most operations in it
    return torch.autocast(device.type, enabled=False)


def without_gradients() -> AbstractContextManager[Any]:
    """Return a block in which no operation records a graph."""
    return torch.no_grad() if torch.is_grad_enabled() else nullcontext()


def own_memory(x: Tensor) -> Tensor:
    """Return a copy of x, no larger than the numbers that it holds; gradients have to be off."""
    once = x if 0 not in x.stride() else _without_repeats(x)
    # A GPU takes three times as long to lay heads out one after another as to copy them as they lie.
    layout = torch.preserve_format if x.is_cuda else torch.contiguous_format
    if not torch.is_inference_mode_enabled():
        own = once.clone(memory_format=layout)
    else:
        with torch.inference_mode(False):  # so that writes to the capture's own tensors are counted
            own = once.clone(memory_format=layout)
    return own if once is x else own.expand(x.shape)


def _without_repeats(x: Tensor) -> Tensor:
    """Return a view of x that has each number of an expanded tensor once."""
    return x.detach()[tuple(slice(None if step else 1) for step in x.stride())]


def copy_if_written(x: Tensor) -> Tensor:
    """Return x, or a copy if it has been written to in place and may be again, as a static cache is."""
    return x if write_count(x) == 0 else x.clone()


def mask_write_counts(mask: Mask) -> tuple[int | None, ...]:
    """Return `write_count` of each tensor that a mask holds."""
    counts: list[int | None] = []
    for value in vars(mask).values():
        if isinstance(value, Mask):
            counts += mask_write_counts(value)
        elif isinstance(value, Tensor):
            counts.append(write_count(value))
    return tuple(counts)


def write_count(x: Tensor) -> int | None:
    """Return how often a tensor has been written to in place; None if PyTorch does not count that.

    PyTorch does not count writes to tensors that were made in inference mode.
    """
    return None if x.is_inference() else x._version
