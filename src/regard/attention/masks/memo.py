"""What was worked out from a mask rule, remembered for as long as the rule says the same.

Two rules are the same if they are of the same kinds with the same numbers, and hold the same tensors, alive
and not written to since. A rule that is a function of your own may answer differently tomorrow: nothing is
remembered for it, nor for tensors of inference mode, which do not say when they are written to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from torch import Tensor

from regard.attention.masks.base import Mask

MOST = 8
"""How many results are kept; the one that was not asked for longest makes room."""

Made = TypeVar("Made")
_kept: dict[Hashable, tuple[list[weakref.ref[Tensor]], Any]] = {}


def memoize_on_mask(mask: Mask, purpose: Hashable, make: Callable[[], Made]) -> Made:
    """What `make` gives for this mask and purpose; made only if it is not remembered."""
    tensors: list[Tensor] = []
    said = _described(mask, tensors)
    if said is None:
        return make()
    key = (said, purpose)
    entry = _kept.pop(key, None)
    if entry is None or any(ref() is None for ref in entry[0]):  # the id of a tensor that is gone is reused
        entry = [weakref.ref(tensor) for tensor in tensors], make()
    _kept[key] = entry
    while len(_kept) > MOST:
        _kept.pop(next(iter(_kept)), None)
    return cast(Made, entry[1])


def _described(value: Any, tensors: list[Tensor]) -> Hashable | None:
    """A rule as what it can be told by; None if that cannot be. Its tensors are collected."""
    if isinstance(value, Tensor):
        if value.is_inference():
            return None
        tensors.append(value)
        return id(value), value._version
    if isinstance(value, Mask):
        names = getattr(value, "__dataclass_fields__", None)
        if names is None:
            return None
        value = (type(value), *(getattr(value, name) for name in names))
    if isinstance(value, tuple):
        parts = tuple(_described(part, tensors) for part in value)
        return None if None in parts else parts
    return ("value", value) if value is None or isinstance(value, int | float | type) else None
