"""What an index into a map means: which sequences, heads, rows and keys, and which axes are left."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Axes(NamedTuple):
    """Which axes before the keys a map still shows; one that was indexed with a number is gone."""

    batch: bool = True
    heads: bool = True
    rows: bool = True

    def visible(self, sizes: tuple[int, ...] | torch.Size) -> tuple[int, ...]:
        return tuple(size for size, there in zip(sizes, self, strict=True) if there)


class Chosen(NamedTuple):
    """An index, understood."""

    batch: slice
    heads: slice
    rows: slice | Tensor
    keys: slice | Tensor | None  # None: all of them, so what is left is a map
    one_key: bool
    axes: Axes


def parse(index: Any, axes: Axes, matrix: tuple[int, int, int, int]) -> Chosen:
    """Understand `map[index]`; ValueError or IndexError says what does not fit."""
    shown = [name for name, there in zip(("batch", "heads", "rows"), axes, strict=True) if there] + ["keys"]
    given = _spelled_out(index if isinstance(index, tuple) else (index,), len(shown))
    wanted = dict(zip(shown, given, strict=True))
    sizes = dict(zip(("batch", "heads", "rows", "keys"), matrix, strict=True))
    gone = dict.fromkeys(("batch", "heads", "rows"), False)
    found: dict[str, slice | Tensor] = {}
    one_key = False
    for name, size in sizes.items():
        item = wanted.get(name, slice(None))
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            found[name] = slice(start, max(start, stop)) if step == 1 else torch.arange(start, stop, step)
        elif isinstance(item, Tensor | list | range) and name in ("rows", "keys"):
            found[name] = _counted(torch.as_tensor(item), size, name)
        else:
            i = _number(item, size, name)
            found[name] = slice(i, i + 1)
            one_key = one_key or name == "keys"
            gone[name] = True
    batch, heads = found["batch"], found["heads"]
    if not (isinstance(batch, slice) and isinstance(heads, slice)):
        raise ValueError("index: batch and heads take a number or a slice without a step")
    left = Axes(
        *(there and not gone[name] for name, there in zip(("batch", "heads", "rows"), axes, strict=True))
    )
    keys = found["keys"]
    whole = isinstance(keys, slice) and keys == slice(0, matrix[3]) and not one_key
    return Chosen(batch, heads, found["rows"], None if whole else keys, one_key, left)


def heads_of(k: Tensor, heads: slice, H: int) -> Tensor:
    """The key heads (B, G, S, D) that some of the H query heads read, so that they group evenly again."""
    group = H // k.shape[1]
    first, count = heads.start, heads.stop - heads.start
    if group == 1 or count == 0:
        return k[:, heads] if group == 1 else k[:, :0]
    if first % group == 0 and count % group == 0:
        return k[:, first // group : heads.stop // group]
    if first // group == (heads.stop - 1) // group:
        return k[:, first // group : first // group + 1]
    return k[:, torch.arange(first, heads.stop, device=k.device) // group]


def _spelled_out(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """An index with its … and its missing trailing axes written out."""
    if index.count(...) > 1:
        raise IndexError("index: expected at most one …")
    if ... not in index:
        index = (*index, ...)
    missing = ndim - (len(index) - 1)
    if missing < 0:
        raise IndexError(f"index: expected at most {ndim} entries for this map, got {len(index) - 1}")
    at = index.index(...)
    return index[:at] + (slice(None),) * missing + index[at + 1 :]


def _number(item: Any, size: int, name: str) -> int:
    try:
        i = operator.index(item)
    except TypeError:
        raise ValueError(f"index: expected a number or slice for {name}, got {type(item).__name__}") from None
    if not -size <= i < size:
        raise IndexError(f"index: expected {name} from {-size} to {size - 1}, got {i}")
    return i % size


def _counted(index: Tensor, size: int, name: str) -> Tensor:
    if index.ndim != 1 or index.dtype.is_floating_point or index.dtype == torch.bool:
        raise ValueError(f"index: expected whole numbers in one dimension for {name}, got {index.dtype}")
    if len(index) and not (-size <= int(index.min()) and int(index.max()) < size):
        raise IndexError(f"index: expected {name} from {-size} to {size - 1}, got up to {int(index.max())}")
    return index % size
