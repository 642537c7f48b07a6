"""Indexing of maps: which sequences, heads, rows and keys an index names, and which axes are left.

This file knows indices and sizes; it does not know maps.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.tensors import check_whole_numbers

NAMES = ("batch", "heads", "rows", "keys")


class Axes(NamedTuple):
    """Which of the axes before the rows a map still shows; one that was indexed with a number is gone."""

    batch: bool = True
    heads: bool = True

    def visible(self, sizes: tuple[int, ...] | torch.Size) -> tuple[int, ...]:
        """Keep the sizes (B, H) of the axes that are left."""
        return tuple(size for size, shown in zip(sizes, self, strict=True) if shown)


class MapIndex(NamedTuple):
    """A parsed index into a map."""

    batch: slice
    heads: slice
    rows: slice | Tensor
    keys: slice | Tensor
    names_keys: bool  # False if the index leaves the keys out, or has `:` for them
    one_row: bool
    one_key: bool
    axes: Axes  # that are left


def parse_index(index: Any, axes: Axes, matrix: tuple[int, int, int, int]) -> MapIndex:
    """Parse `m[index]` for a map of size (B, H, T, S) that shows some axes.

    Raises ValueError for a kind of index that a map does not take, and IndexError for one out of range.
    """
    shown = [name for name, there in zip(NAMES, (*axes, True, True), strict=True) if there]
    items = _expand(index if isinstance(index, tuple) else (index,), len(shown))
    by_name = dict(zip(shown, items, strict=True))
    spans: dict[str, slice | Tensor] = {}
    single: set[str] = set()
    for name, size in zip(NAMES, matrix, strict=True):
        item = by_name.get(name, slice(None))
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            spans[name] = (
                # A step that is not 1 has no slice of its own in a mask or a matrix product, so that it
                # becomes a list.
                slice(start, max(start, stop)) if step == 1 else torch.arange(start, stop, step, device="cpu")
            )
        elif isinstance(item, Tensor | list | range) and name in ("rows", "keys"):
            expected = f"whole numbers in one dimension for {name}"
            spans[name] = _check_positions(check_whole_numbers("index", item, expected), size, name)
        else:
            i = _check_position(item, size, name)
            spans[name] = slice(i, i + 1)
            single.add(name)
    batch, heads = spans["batch"], spans["heads"]
    if not (isinstance(batch, slice) and isinstance(heads, slice)):
        raise ValueError("index: batch and heads take a number or a slice without a step")
    return MapIndex(
        batch,
        heads,
        spans["rows"],
        spans["keys"],
        names_keys=by_name["keys"] != slice(None) if isinstance(by_name["keys"], slice) else True,
        one_row="rows" in single,
        one_key="keys" in single,
        axes=Axes(axes.batch and "batch" not in single, axes.heads and "heads" not in single),
    )


def select_kv_heads(k: Tensor, heads: slice, H: int) -> Tensor:
    """Select the key heads of k (B, G, S, D) that some of the H query heads read, grouped evenly again."""
    group = H // max(k.shape[1], 1) or 1  # a map without heads has none of either
    first, count = heads.start, heads.stop - heads.start
    if group == 1 or count == 0:
        return k[:, heads] if group == 1 else k[:, :0]
    if first % group == 0 and count % group == 0:
        return k[:, first // group : heads.stop // group]
    if first // group == (heads.stop - 1) // group:
        return k[:, first // group : first // group + 1]
    # Some heads of several groups, unevenly: each gets a copy of its key head.
    return k[:, torch.arange(first, heads.stop, device=k.device) // group]


def _expand(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Replace … and missing trailing axes of an index by `:`."""
    dots = [i for i, item in enumerate(index) if item is ...]
    if len(dots) > 1:
        raise IndexError("index: expected at most one …")
    if not dots:
        index, dots = (*index, ...), [len(index)]
    missing = ndim - (len(index) - 1)
    if missing < 0:
        raise IndexError(f"index: expected at most {ndim} entries for this map, got {len(index) - 1}")
    return index[: dots[0]] + (slice(None),) * missing + index[dots[0] + 1 :]


def _check_position(item: Any, size: int, name: str) -> int:
    """An integer index, counted from 0."""
    try:
        # operator.index takes NumPy's and PyTorch's integers as well, and refuses floats.
        i = operator.index(item)
    except TypeError:
        raise ValueError(f"index: expected a number or slice for {name}, got {type(item).__name__}") from None
    if not -size <= i < size:
        raise IndexError(f"index: expected {name} from {-size} to {size - 1}, got {i}")
    return i % size


def _check_positions(index: Tensor, size: int, name: str) -> Tensor:
    """A list of integer indices, counted from 0."""
    if index.ndim != 1:
        raise ValueError(
            f"index: expected whole numbers in one dimension for {name}, got {tuple(index.shape)}"
        )
    index = index.long()
    if len(index) and not (-size <= int(index.min()) and int(index.max()) < size):
        raise IndexError(f"index: expected {name} from {-size} to {size - 1}, got up to {int(index.max())}")
    return index % size


def diagonal_spans(offset: int, T: int, S: int) -> tuple[slice, slice]:
    """The rows and the keys of the entries [i, i + offset] of a matrix (T, S)."""
    first = max(0, -offset)
    length = max(0, min(T - first, S - offset - first))
    return slice(first, first + length), slice(first + offset, first + offset + length)
