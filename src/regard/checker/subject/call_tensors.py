"""What goes into a call and comes out of it: layouts, dtypes, arrays, masks, rotary tables, stated arguments.

Which shape code takes for its rotary tables is found by running it; their angles are those of base 10,000 at
positions 0, 1, 2, …. An argument that the caller states may be a tensor by its shape: `"randn(B, T, C)"` is
made anew for every question, since its sizes are the question's. It is a string, so that it can be written in
a shell too: `--call pe=randn(T,C)`.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Rotation


def as_grid(T: int) -> tuple[int, int]:
    """Return the height and the width of an image of T pixels, the height as near the root as possible."""
    height = max(h for h in range(1, math.isqrt(T) + 1) if T % h == 0)
    return height, T // height


# Layouts of whole sequences, by the letters of their axes.
SEQUENCES = ("BTC", "TBC", "TC", "BCT", "BCHW", "BHWC")
# Those of a function's queries, keys and values, likeliest first. Megatron's attention has the tokens first;
# taken for (B, T, H, D), it would mix the batch.
HEAD_LAYOUTS = ("BHTD", "BTHD", "BTD", "TD", "TBHD", "TBD")


def spell(layout: str) -> str:
    """Return a layout as it is written for a reader: "(B, H, T, D)"."""
    return f"({', '.join(layout)})"


def arrange(t: Tensor, axes: str, target: str) -> Tensor:
    """Return a tensor whose axes are these letters, "BTHD", with the axes of another layout, "BHTD".

    Of an axis that the target has not, the first entry is taken; one that it has alone is of size 1.
    """
    if axes == target:
        return t
    for axis in [axis for axis in axes if axis not in target]:
        t, axes = t.select(axes.index(axis), 0), axes.replace(axis, "")
    t = t.permute([axes.index(axis) for axis in target if axis in axes])
    for place in [place for place, axis in enumerate(target) if axis not in axes]:
        t = t.unsqueeze(place)
    return t


def as_sequence(t: Tensor, layout: str) -> Tensor | None:
    """Return a tensor of a layout of sequences as (B, T, C), or None if its dimensions do not fit."""
    if t.ndim != len(layout):
        return None
    return arrange(t, layout, "BHWC").flatten(1, 2) if "W" in layout else arrange(t, layout, "BTC")


def from_arrays(result: Any) -> Any:
    """Return NumPy arrays, alone or in a tuple or list, as tensors."""
    if isinstance(result, list | tuple):
        return [from_arrays(part) for part in result]
    # By name, so that NumPy is not imported for code that does not use it.
    return (
        torch.from_numpy(result)
        if type(result).__module__ == "numpy" and hasattr(result, "shape")
        else result
    )


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a module's floating-point tensors; complex ones stay complex, which `.to(dtype)` would undo."""
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def convert(x: Tensor) -> Tensor:
        return x.to(wide) if x.is_complex() else x.to(dtype) if x.is_floating_point() else x

    # `.to()` is made of this, and converts no single kind of tensor.
    converted: nn.Module = module._apply(convert)  # type: ignore[no-untyped-call]
    return converted


def copy_module(module: nn.Module) -> nn.Module:
    """Copy a module, even one that keeps tensors of an earlier forward pass as attributes."""
    saved = [(part, dict(vars(part))) for part in module.modules()]
    try:
        for part, attributes in saved:
            part.__dict__.update({name: _detach(value) for name, value in attributes.items()})
        return copy.deepcopy(module)
    finally:
        for part, attributes in saved:
            part.__dict__.update(attributes)


def _detach(value: Any) -> Any:
    """Detach tensors from their graph: `deepcopy` refuses those that are not leaves."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return value.detach()
    # Not isinstance: a named tuple takes its fields one by one.
    if type(value) in (list, tuple):
        return type(value)(_detach(part) for part in value)
    return value


def to_device(value: Any, device: str) -> Any:
    """Move a tensor or a module to a device; other values, and tensors without data, stay as they are."""
    if isinstance(value, nn.Module):
        # `.to()` would leave plain tensors behind, such as the sinks of Transformers' interface.
        tensors = {name: x for name, x in vars(value).items() if isinstance(x, Tensor)}
        value.__dict__.update({name: x.to(device) for name, x in tensors.items()})
    return value.to(device) if isinstance(value, Tensor) and not value.is_meta else value


def tensors_in_result(result: Any) -> list[Tensor]:
    """Return the tensors of a result: the result itself, or those in a tuple, list, dict or dataclass."""
    if isinstance(result, Tensor):
        return [result]
    values = vars(result) if hasattr(result, "__dataclass_fields__") else result
    parts = values.values() if isinstance(values, dict) else values
    return [x for x in parts if isinstance(x, Tensor)] if isinstance(values, dict | list | tuple) else []


# What each kind of mask holds, in words, where a key is visible and where it is hidden.
_MASK_KINDS: dict[str, tuple[str, float, float]] = {
    "look": ("boolean, True = may look", 1.0, 0.0),
    "hide": ("boolean, True = hidden", 0.0, 1.0),
    "added": ("float, added to the scores", 0.0, -torch.inf),
    # As Transformers passes it.
    "lowest": ("float, added to the scores, the lowest number hides", 0.0, torch.finfo(torch.float32).min),
    "zero-one": ("float, 1 = may look, 0 = hidden", 1.0, 0.0),
    "one-zero": ("float, 1 = hidden, 0 = may look", 0.0, 1.0),
}


@dataclass(frozen=True)
class MaskForm:
    """The convention that a subject's mask argument follows: a kind of `_MASK_KINDS` and a rank.

    `rank` is 1 for (B, S), a mask of tokens, 2 for (T, S), 3 for (B, T, S), 4 for (B, 1, T, S).
    """

    kind: str = "look"
    rank: int = 2

    def __str__(self) -> str:
        shape = ("", "(B, S)", "(T, S)", "(B, T, S)", "(B, 1, T, S)")[self.rank]
        return f"{_MASK_KINDS[self.kind][0]}, {shape}"

    def spread(self, mask: Tensor, batch: int) -> Tensor:
        """Return a mask or bias (T, S) or (B, 1, T, S) with as many dimensions as this convention has."""
        if mask.ndim == 4 and self.rank < 4:
            return mask[:, 0] if self.rank == 3 else mask[0, 0]
        if mask.ndim == 2 and self.rank > 2:
            return mask.expand(batch, 1, *mask.shape) if self.rank == 4 else mask.expand(batch, *mask.shape)
        return mask

    def encode(self, mask: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
        """Encode a mask (T, S) or (B, 1, T, S), in which True means visible, in this convention.

        `dtype` is that of a float mask, `batch` the batch size.
        """
        words, shows, hides = _MASK_KINDS[self.kind]
        if self.kind == "lowest":
            # That of float64 would become −inf in code that goes through float32.
            hides = max(torch.finfo(dtype).min, hides)
        dtype = torch.bool if words.startswith("boolean") else dtype
        mask = self.spread(mask, batch)
        return torch.full(mask.shape, shows, dtype=dtype).masked_fill(~mask, hides)


# The angles of a row of D channels, and how the channels are paired by them; "once" has each angle once, in
# D / 2 channels.
_ORDERS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[str, ...]]] = {
    "halves": (lambda angles: torch.cat([angles, angles], -1), ("half",)),
    "once": (lambda angles: angles, ("interleaved", "half")),
    "neighbours": (lambda angles: angles.repeat_interleave(2, -1), ("interleaved",)),
}
_TABLE_LAYOUTS = ("TD", "BTD", "BTHD", "BHTD")  # the axes of items and heads are of size 1


@dataclass(frozen=True)
class RotaryTables:
    """The tables that code takes: the names of the arguments, what they hold, and their layout.

    `kind` is "cos and sin" (two arguments, or a pair in one), "complex", "stacked" (cosines and sines on
    a last axis) or "angles".
    """

    names: tuple[str, ...]
    width: int  # of a head
    kind: str = "cos and sin"
    order: str = "halves"
    layout: str = "TD"
    usual: bool = False  # whether it is how Transformers passes them, which need not be found out

    @property
    def frequencies(self) -> Tensor:
        """The angle of every pair of channels per position."""
        return 10000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)

    def make(self, T: int, dtype: torch.dtype, start: int = 0) -> dict[str, Any]:
        """Return the arguments for T positions from `start` on."""
        angles = torch.arange(start, start + T, dtype=torch.float64)[:, None] * self.frequencies
        row = arrange(_ORDERS[self.order][0](angles), "TD", self.layout)
        cos, sin = row.cos().to(dtype), row.sin().to(dtype)
        if len(self.names) == 2:
            return dict(zip(self.names, (cos, sin), strict=True))
        if self.kind == "cos and sin":
            return {self.names[0]: (cos, sin)}
        if self.kind == "complex":
            return {self.names[0]: torch.complex(cos, sin)}
        return {self.names[0]: torch.stack([cos, sin], -1) if self.kind == "stacked" else row.to(dtype)}

    def rotations(self) -> list[Rotation]:
        """Return the rotations that these tables may mean, in either direction."""
        # Turning the other way is right as long as queries and keys agree.
        signs = (self.frequencies, -self.frequencies)
        return [Rotation(f, pairing) for f in signs for pairing in _ORDERS[self.order][1]]


def table_forms(names: tuple[str, ...], width: int) -> Iterator[RotaryTables]:
    """Yield the usual forms of the tables for these arguments."""
    forms = [("cos and sin", order, layout) for order in _ORDERS for layout in _TABLE_LAYOUTS]
    if len(names) == 1:
        forms = [("complex", "once", layout) for layout in _TABLE_LAYOUTS] + forms
        forms += [("stacked", "once", "TD"), *(("angles", order, "TD") for order in _ORDERS)]
    yield from (RotaryTables(names, width, *form) for form in forms)


LETTERS = "B, T, S, C, H and D"
_SHAPE = re.compile(r"(zeros|ones|randn|arange)\(([^()]*)\)")
_SIZE = re.compile(r"[BTSCHD0-9+*\- ]+")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, or the shape of one."""
    return isinstance(value, Tensor) or (
        isinstance(value, str) and _SHAPE.fullmatch(value.strip()) is not None
    )


def make_values(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Return the values of arguments for a question, with a tensor in place of every shape.

    B is the batch size, T and S are the numbers of queries and keys, C the width of a sequence; for split
    heads H is their number and D their width.
    """
    return {name: _make_value(name, value, question) for name, value in values.items()}


def _make_value(name: str, value: Any, question: Question) -> Any:
    match = _SHAPE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        # The code may write into it.
        return value.clone() if isinstance(value, Tensor) else value
    q, S = question.q, question.k.shape[-2]
    letters = {"B": q.shape[0], "T": q.shape[-2], "S": S}
    letters |= {"H": q.shape[1], "D": q.shape[-1]} if q.ndim == 4 else {"C": q.shape[-1]}
    sizes: list[int] = []
    for text in (text.strip() for text in match[2].split(",") if text.strip()):
        try:
            if _SIZE.fullmatch(text) is None:
                raise ValueError(text)
            sizes.append(int(eval(text, {"__builtins__": {}}, letters)))  # only letters, numbers, + − and ×
        except (ValueError, NameError, SyntaxError, TypeError):
            raise CheckError(
                f"--call {name}={value}: expected sizes of numbers and of {LETTERS}, joined by + - *, "
                f"got {text!r}; here {', '.join(f'{k} is {v}' for k, v in letters.items())}"
            ) from None
    if match[1] == "arange":
        return torch.arange(*sizes)
    if match[1] == "randn":
        draw = torch.Generator().manual_seed(60)
        return torch.randn(sizes, generator=draw, dtype=torch.float64).to(question.dtype)
    return torch.full(sizes, float(match[1] == "ones"), dtype=question.dtype)
