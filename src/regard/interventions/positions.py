"""Positions of tokens, as an edit names them: one, several, a slice, spans, or one span."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.maps.spans import NamedSpan, Spans

Positions = int | slice | range | Sequence[int] | Tensor | Spans | NamedSpan
"""One position, several, a slice of positions, or all positions of spans; −1 is the last token."""


def check_positions(name: str, positions: Any) -> Positions:
    """Return positions as they are; a ValueError says what was expected if they are something else."""
    if isinstance(positions, slice):
        if positions.step not in (None, 1):
            raise ValueError(f"{name}: expected a slice without a step, got {positions}")
        if not all(end is None or hasattr(end, "__index__") for end in (positions.start, positions.stop)):
            raise ValueError(f"{name}: expected a slice of whole numbers, got {positions}")
        return positions
    if isinstance(positions, Spans):
        return positions
    if isinstance(positions, NamedSpan):
        return slice(positions.start, positions.stop)
    if isinstance(positions, Tensor) and positions.dtype == torch.bool:
        raise ValueError(f"{name}: expected positions as numbers, got booleans: write x.nonzero().flatten()")
    try:
        numbers = positions.tolist() if isinstance(positions, Tensor) else positions
        if not isinstance(numbers, Sequence | range):
            # NumPy's whole numbers are taken as well.
            return operator.index(numbers)
        return [operator.index(i) for i in numbers]
    except TypeError:
        raise ValueError(
            f"{name}: expected a position, several, a slice or spans, got {type(positions).__name__}"
        ) from None


def position_flags(positions: Positions, n: int, device: torch.device) -> Tensor:
    """Return booleans (n,), True at the positions; those outside of the n positions are left out."""
    flags = torch.zeros(n, dtype=torch.bool, device=device)
    if isinstance(positions, Spans):
        for start, stop, _ in positions:
            flags[start:stop] = True
    elif isinstance(positions, slice):
        flags[positions] = True
    else:
        numbers = [positions] if isinstance(positions, int) else list(positions)
        inside = [i % n for i in numbers if n and -n <= i < n]
        flags[inside] = True
    return flags


def describe_positions(positions: Positions) -> str:
    """Return positions in short, as `3`, `3–7`, `all` or `12 positions`.

    >>> describe_positions(slice(None)), describe_positions(slice(3, 8)), describe_positions(slice(3, None))
    ('all', '3–7', '3–')
    """
    if isinstance(positions, int):
        return str(positions)
    if isinstance(positions, Spans):
        return f"{len(positions)} spans"
    if isinstance(positions, slice):
        start, stop = positions.start or 0, positions.stop
        if stop is None:
            return f"{start}–" if start else "all"
        return str(start) if stop - start == 1 else f"{start}–{stop - 1}"
    numbers = list(positions)
    return ", ".join(map(str, numbers)) if len(numbers) < 5 else f"{len(numbers)} positions"
