"""An LRU cache of values that are derived from a mask, such as block lists and padding biases.

Two masks share an entry if they are of the same classes of Regard with the same numbers and hold the same
tensors. An entry is not used any more once one of the tensors is modified or freed. A pure function counts by
its code and all that it reads (see `pure`). Nothing is cached for a mask that holds any other function, which
may change its answer, a large tensor, whose blocks are large as well, or a tensor whose modifications are not
counted, nor while a graph is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import Rule
from regard.attention.masks.pure import LARGE, identify_function, identify_tensor
from regard.lru import LRUCache

MAXSIZE = 64
"""How many values are cached, over all masks."""
MAX_BYTES = 1 << 30
"""The size of the largest value that is cached."""
ALL_BYTES = 2 << 30
"""The size of all values that are cached."""

V = TypeVar("V")
_cache: LRUCache[tuple[list[weakref.ref[Tensor]], Any]] = LRUCache(MAXSIZE, ALL_BYTES)


def memoize_on_mask(mask: Mask, key: Hashable, compute: Callable[[], V]) -> V:
    """The value of `compute()` for this mask and `key`, computed only if it is not cached."""
    tensors: list[Tensor] = []
    identity = None if is_compiling() else _identify(mask, tensors)
    if identity is None or any(tensor.nbytes > LARGE for tensor in tensors):
        return compute()

    entry = _cache.find((identity, key))
    # If a tensor is gone, Python gave its id to a new one.
    if entry is not None and all(ref() is not None for ref in entry[0]):
        return cast(V, entry[1])
    with torch.inference_mode(False):  # later calls may need gradients
        value = compute()
    nbytes = _nbytes(value)
    # Another thread may have changed the mask meanwhile.
    if nbytes <= MAX_BYTES and _identify(mask, []) == identity:
        _cache.store((identity, key), ([weakref.ref(tensor) for tensor in tensors], value), nbytes)
    return value


def _nbytes(value: object) -> int:
    """The memory of a tensor, of tables that say theirs, and of all that are in a list or tuple."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()  # that of an expanded tensor is small
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


def is_memoized(mask: Mask) -> bool:
    """Whether values are cached for a mask at all."""
    tensors: list[Tensor] = []
    identified = not is_compiling() and _identify(mask, tensors) is not None
    return identified and all(tensor.nbytes <= LARGE for tensor in tensors)


def remember(mask: Mask) -> Callable[[], None]:
    """A function that raises RuntimeError if the mask has changed by then.

    A backward pass asks the mask again, and its gradients would be wrong. What a function that is not pure
    answers cannot be known.
    """
    tensors: list[Tensor] = []
    identity = _identify(mask, tensors)

    def check(_held: list[Tensor] = tensors) -> None:  # so that no other tensor gets the identity of one
        if identity is not None and _identify(mask, []) != identity:
            raise RuntimeError(
                f"attend: the mask {mask} has changed between the forward and the backward pass, so that the "
                "gradients would be wrong. Do not write to its tensors in between, and bind what a function "
                "reads where it is made, as in lambda b, h, q, k, n=n: q - k < n"
            )

    return check


def _identify(value: Any, tensors: list[Tensor]) -> Hashable | None:
    """What identifies a mask or one of its fields, or None if nothing does. Its tensors are collected."""
    if isinstance(value, Tensor):
        return identify_tensor(value, tensors)
    if type(value) is Rule:
        function, selections = (
            identify_function(value.predicate, tensors),
            _identify(value.selections, tensors),
        )
        return None if function is None or selections is None else (Rule, function, selections)
    if isinstance(value, Mask):
        kind: Any = type(value)
        if not is_dataclass(kind) or not kind.__module__.startswith("regard."):  # it may do anything
            return None
        value = (kind, *(getattr(value, field.name) for field in fields(kind)))
    if isinstance(value, slice):
        value = (slice, value.start, value.stop, value.step)
    if isinstance(value, tuple):
        parts = tuple(_identify(part, tensors) for part in value)
        return None if None in parts else parts
    if isinstance(value, float):
        return float, value.hex()  # 0.0 == −0.0
    return ("value", value) if value is None or isinstance(value, int | type) else None
