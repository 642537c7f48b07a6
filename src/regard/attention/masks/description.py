"""Masks as plain data, for saved files: the class, its numbers, and the names of its tensors.

Only classes declared with `stored=True` are written or read, so a file can name nothing else. This file knows
dictionaries and tensors; how they reach the disk is known to the callers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from regard.attention.masks import named_masks as named_masks  # declares its classes, as does the next one
from regard.attention.masks import views as views
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal
from regard.support.files import check_type, get_field, shorten

MAX_DEPTH = 64
"""The most masks inside one another that are read, as in `~(a & (b | c))`, which has three."""


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


def rebuild_mask(description: dict[str, Any], tensors: dict[str, Tensor], depth: int = 0) -> Mask:
    """The mask that `describe_mask` described; a ValueError names the field that is wrong.

    Masks may be nested to `MAX_DEPTH`, of which `depth` are around this one.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"mask: expected at most {MAX_DEPTH} masks inside one another, got more")
    kind = get_field(description, "kind", str)
    if kind not in Mask.stored_classes:
        raise ValueError(f"kind: expected one of {', '.join(Mask.stored_classes)}, got {shorten(kind)}")
    cls: Any = Mask.stored_classes[kind]
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    # A missing field must not fall back to its default: the file would show another mask than was saved.
    if (names := description.keys() - {"kind"}) != fields.keys():
        raise ValueError(f"{kind}: expected the fields {sorted(fields)}, got {shorten(sorted(names))}")
    values: dict[str, Any] = {}
    for name, annotation in fields.items():
        value, label = description[name], f"{kind}.{name}"
        if annotation == "Mask":
            values[name] = rebuild_mask(check_type(label, value, dict), tensors, depth + 1)
        elif annotation == "Tensor":
            tensor = get_field(check_type(label, value, dict), "tensor", str)
            if tensor not in tensors:
                raise ValueError(f"{label}: expected a tensor of the file, got {shorten(tensor)}")
            values[name] = tensors[tensor]
        elif value is None and annotation == "int | None":
            values[name] = None
        else:
            values[name] = check_type(label, value, bool if annotation == "bool" else int)
    mask: Mask = cls(**values)
    # Backends recognise these two by identity.
    return next((constant for constant in (full, causal) if constant == mask), mask)
