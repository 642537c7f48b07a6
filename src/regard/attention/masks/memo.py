"""An LRU cache of values that are derived from a mask, such as block lists and padding biases.

Two masks share an entry if they are of the same classes of Regard with the same numbers, hold the same
tensors, and their functions have the same code and read the same values (see `identity`). An entry is not
used any more once one of the tensors is modified or freed. Not cached: masks of other classes, with a
function that reads objects of other kinds, with a tensor over 16 MiB or of inference mode; and nothing while
a graph is compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.masks.base import Mask
from regard.attention.masks.identity import LARGE, identify
from regard.support.lru import LRUCache

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
    identity = None if is_compiling() else identify(mask, tensors)
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
    if nbytes <= MAX_BYTES and identify(mask, []) == identity:
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
    identified = not is_compiling() and identify(mask, tensors) is not None
    return identified and all(tensor.nbytes <= LARGE for tensor in tensors)


def remember(mask: Mask) -> Callable[[], None]:
    """A function that raises RuntimeError if the mask has changed by then.

    A backward pass asks the mask again, and its gradients would be wrong. A mask without an identity is
    not checked.
    """
    tensors: list[Tensor] = []
    identity = identify(mask, tensors)

    def check(_held: list[Tensor] = tensors) -> None:  # so that no other tensor gets the identity of one
        if identity is not None and identify(mask, []) != identity:
            raise RuntimeError(
                f"attend: the mask {mask} has changed between the forward and the backward pass, so that the "
                "gradients would be wrong. Do not write to its tensors in between, and bind what a function "
                "reads where it is made, as in lambda b, h, q, k, n=n: q - k < n"
            )

    return check
