"""Masks as plain data, for saved files: the class, its numbers, and the names of its tensors.

Only classes declared with `stored=True` are written or read, so a file can name nothing else. This file knows
dictionaries and tensors; how they reach the disk is known to the callers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from regard.attention.masks import named_masks as named_masks  # declares its classes, and so does `views`
from regard.attention.masks import views as views
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal


def describe_mask(mask: Mask, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A mask as data that JSON can hold. Its tensors are added to `tensors`, under new names.

    >>> describe_mask(causal & named_masks.window(4), {})["right"]
    {'kind': 'Window', 'size': 4, 'ahead': None}
    """
    if not mask.is_storable():
        raise ValueError(
            f"mask: {mask} is a function, which a file cannot hold: "
            "pass it as regard.tensor_mask(tensor), or combine the named masks"
        )
    description: dict[str, Any] = {"kind": type(mask).__name__}
    for field in dataclasses.fields(mask):  # type: ignore[arg-type]
        value = getattr(mask, field.name)
        if isinstance(value, Mask):
            value = describe_mask(value, tensors)
        elif isinstance(value, Tensor):
            name = f"mask.{len(tensors)}"
            tensors[name] = value
            value = {"tensor": name}
        description[field.name] = value
    return description


def rebuild_mask(description: dict[str, Any], tensors: dict[str, Tensor]) -> Mask:
    """The mask that `describe_mask` described; KeyError if it names an unknown class or tensor."""
    values: dict[str, Any] = {}
    for name, value in description.items():
        if isinstance(value, dict):
            value = rebuild_mask(value, tensors) if "kind" in value else tensors[value["tensor"]]
        values[name] = value
    mask = Mask.stored_classes[values.pop("kind")](**values)
    # Backends recognise these two by identity.
    return next((constant for constant in (full, causal) if constant == mask), mask)
