"""Rotary tables as arguments: code that is handed its cosines and sines, in one of the usual shapes.

Which shape it takes is found by running it. The angles are those of base 10,000 at positions 0, 1, 2, ….
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.rotation import Rotation

# The shapes of one table, by the axes that hold positions and channels.
_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(T, D)": lambda x: x,
    "(1, T, D)": lambda x: x[None],
    "(1, T, 1, D)": lambda x: x[None, :, None],
    "(1, 1, T, D)": lambda x: x[None, None],
}
# The order of the angles in a row of D channels; "once" has each angle once, in D / 2 channels.
_ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda angles: torch.cat([angles, angles], -1),
    "once": lambda angles: angles,
    "neighbours": lambda angles: angles.repeat_interleave(2, -1),
}
_PAIRINGS = {"halves": ("half",), "neighbours": ("interleaved",), "once": ("interleaved", "half")}


@dataclass(frozen=True)
class RotaryTables:
    """The tables that code takes: the names of the arguments, what they hold, and their shape.

    `kind` is "cos and sin" (two arguments, or a pair in one), "complex", "stacked" (cosines and sines on
    a last axis) or "angles".
    """

    names: tuple[str, ...]
    width: int  # of a head
    kind: str = "cos and sin"
    order: str = "halves"
    shape: str = "(T, D)"

    @property
    def frequencies(self) -> Tensor:
        """The angle of every pair of channels per position."""
        return 10000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)

    def make(self, T: int, dtype: torch.dtype, start: int = 0) -> dict[str, Any]:
        """Return the arguments for T positions from `start` on."""
        angles = torch.arange(start, start + T, dtype=torch.float64)[:, None] * self.frequencies
        row = _SHAPES[self.shape](_ORDERS[self.order](angles))
        cos, sin = row.cos().to(dtype), row.sin().to(dtype)
        if self.kind == "cos and sin":
            return (
                dict(zip(self.names, (cos, sin), strict=True))
                if len(self.names) == 2
                else {self.names[0]: (cos, sin)}
            )
        if self.kind == "complex":
            return {self.names[0]: torch.complex(cos, sin)}
        return {self.names[0]: torch.stack([cos, sin], -1) if self.kind == "stacked" else row.to(dtype)}

    def rotations(self) -> list[Rotation]:
        """Return the rotations that these tables may mean, in either direction."""
        # Turning the other way is right as long as queries and keys agree.
        signs = (self.frequencies, -self.frequencies)
        return [Rotation(frequencies, pairing) for frequencies in signs for pairing in _PAIRINGS[self.order]]


def table_forms(names: tuple[str, ...], width: int) -> Iterator[RotaryTables]:
    """Yield the usual forms of the tables for these arguments."""
    if len(names) == 1:
        for shape in _SHAPES:
            yield RotaryTables(names, width, "complex", "once", shape)
    for order in ("halves", "once", "neighbours"):
        for shape in _SHAPES:
            yield RotaryTables(names, width, "cos and sin", order, shape)
    if len(names) == 1:
        for kind, order in (
            ("stacked", "once"),
            ("angles", "once"),
            ("angles", "halves"),
            ("angles", "neighbours"),
        ):
            yield RotaryTables(names, width, kind, order)
