"""Masks that hold tensors: padding, documents, a matrix, and biases by distance.

The functions that check their arguments are in `named_masks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import Index, Mask, full
from regard.attention.masks.grid import Grid, always, look_up
from regard.attention.masks.memo import memoize_on_mask

SomeMask = TypeVar("SomeMask", bound=Mask)


@dataclass(frozen=True, repr=False, eq=False)
class Padding(Mask, stored=True):
    """Keys that are padding are hidden from every query."""

    lengths_or_mask: Tensor
    """How many tokens each sequence has, (B,), or which keys are tokens, boolean (B, S)."""
    is_padding = True

    @property
    def _by_length(self) -> bool:
        return self.lengths_or_mask.ndim == 1

    def key_padding(self, S: int) -> Tensor | None:
        if not self._by_length:
            return self.lengths_or_mask
        positions = torch.arange(S, device=self.lengths_or_mask.device)
        return positions < self.lengths_or_mask.unsqueeze(1)  # (B, S)

    def picture_shape(self) -> tuple[int, int]:
        given = self.lengths_or_mask
        S = int(given.max()) if self._by_length and given.numel() else given.shape[-1]
        return S, S

    def allowed(self, at: Grid) -> Tensor:
        table = self.lengths_or_mask.to(at.k.device)
        if self._by_length:
            return always(at.q) & (at.k < table.view(-1, 1, 1, 1))
        return always(at.q) & look_up(table, at.cols)[:, None, None]

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        # The default would do, but a padded batch that is decoded asks this for every token and layer.
        table = self.lengths_or_mask
        hides_nothing = (table >= shape[-1]).all() if self._by_length else table.all()
        return full if bool(hides_nothing) else self

    def select(self, batch: Index, heads: Index) -> Mask:
        return Padding(_take(self.lengths_or_mask, 0, batch))

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        # Lengths say where the padding begins, and new tokens come after it: no length can say that.
        if self._by_length:
            return None
        is_token = next((mask.key_padding(S) for mask in new if mask.is_padding), None)
        tail = self.lengths_or_mask.new_ones(1, T) if is_token is None else is_token[:, -T:]
        return Padding(_append(self.lengths_or_mask, tail))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        table = self.lengths_or_mask
        if B is not None and len(table) not in (1, B):
            return f"expected one entry for each of the {B} sequences in the batch, got {len(table)}" + (
                "; (X, T, D) is read as X heads of one sequence: add a heads axis with .unsqueeze(1)"
                if B == 1
                else ""
            )
        if not self._by_length and table.shape[1] != S:
            return f"expected a mark for each of the {S} keys, got {table.shape[1]}"
        return None

    def __repr__(self) -> str:
        table = self.lengths_or_mask
        if not self._by_length:
            return f"padding({_format_shape(table.shape)})"
        shown = ", ".join(str(n) for n in table[:4].tolist()) + (", …" if len(table) > 4 else "")
        return f"padding([{shown}])"


@dataclass(frozen=True, repr=False, eq=False)
class Documents(Mask, stored=True):
    """A query sees the keys of its own document."""

    is_documents = True

    ids: Tensor
    """The document of each key, (B, S)."""

    def picture_shape(self) -> tuple[int, int]:
        S = self.ids.shape[-1]
        return S, S

    def allowed(self, at: Grid) -> Tensor:
        ids = self.ids.to(at.k.device)
        q, k = look_up(ids, at.q), look_up(ids, at.k)  # (B, rows), (B, cols)
        return q[:, None, :, None] == k[:, None, None]

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        if self.ids.is_cpu:
            return super().simplified(shape)
        # Reading ids on a GPU makes the host wait for it, which it may do once and not in every call.
        sees_all = memoize_on_mask(
            self, ("simplified", shape[-2:]), lambda: super(Documents, self).simplified(shape) is full
        )
        return full if sees_all else self

    def select(self, batch: Index, heads: Index) -> Mask:
        return Documents(_take(self.ids, 0, batch))

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        documents = _of_class(Documents, new)
        tail = documents[0].ids[:, -T:] if documents else self.ids[:, -1:].expand(-1, T)
        return Documents(_append(self.ids, tail))

    def append_document(self, n: int) -> Mask | None:
        # A number that no document has, so that the new tokens see only each other.
        return Documents(pad(self.ids, (0, n), value=int(self.ids.max()) + 1))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if B is not None and len(self.ids) not in (1, B):
            return f"expected ids for each of the {B} sequences in the batch, got {len(self.ids)}"
        if self.ids.shape[1] != S:
            return f"expected an id for each of the {S} keys, got {self.ids.shape[1]}"
        return f"expected no more queries than keys, got {T} queries and {S} keys" if T > S else None

    def __repr__(self) -> str:
        return f"documents({_format_shape(self.ids.shape)})"


@dataclass(frozen=True, repr=False, eq=False)
class TensorMask(Mask, stored=True):
    """A tensor of booleans (True is visible), or of floats that are added to the scores (−inf hides)."""

    tensor: Tensor
    """(B or 1, H or 1, T or 1, S or 1)."""
    head_axes: ClassVar[dict[str, int]] = {"tensor": 1}

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return self.tensor.dtype != torch.bool

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.tensor.requires_grad

    def _part(self, at: Grid) -> Tensor:
        tensor = self.tensor.to(at.k.device)
        tensor = tensor if tensor.shape[-2] == 1 else tensor[:, :, at.rows]
        return tensor if tensor.shape[-1] == 1 else tensor[..., at.cols]

    def picture_shape(self) -> tuple[int, int]:
        T, S = self.tensor.shape[-2:]
        # One row or column serves all, and a picture of one line shows nothing.
        return (T if T > 1 else S), (S if S > 1 else T)

    def allowed(self, at: Grid) -> Tensor:
        part = self._part(at)
        return part != -torch.inf if self.biased else part  # NaN is visible, so that it shows in the output

    def score_bias(self, at: Grid) -> Tensor | None:
        return self._part(at) if self.biased else None

    def select(self, batch: Index, heads: Index) -> Mask:
        return TensorMask(_take(_take(self.tensor, 0, batch), 1, heads))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        sizes = zip(self.tensor.shape, (B, H, T, S), strict=True)
        if all(size == 1 or expected in (None, size) for size, expected in sizes):
            return None
        shape = (T, S) if B is None else (B, H, T, S)
        return f"expected a shape that broadcasts to {shape}, got {self._short_shape()}"

    def _short_shape(self) -> tuple[int, ...]:
        """The shape without leading ones."""
        sizes = tuple(self.tensor.shape)
        while len(sizes) > 2 and sizes[0] == 1:
            sizes = sizes[1:]
        return sizes

    def __repr__(self) -> str:
        return f"tensor_mask({_format_shape(self._short_shape())})"


@dataclass(frozen=True, repr=False, eq=False)
class Alibi(Mask, stored=True):
    """Every step of distance lowers the score by the slope of the head (Press 2022); every key is visible."""

    slopes: Tensor
    """(H,)."""
    head_axes: ClassVar[dict[str, int]] = {"slopes": 0}
    biased = True
    hides = False
    translation_invariant = True

    def allowed(self, at: Grid) -> Tensor:
        return full.allowed(at)

    def score_bias(self, at: Grid) -> Tensor:
        return -self.slopes.to(at.k.device).view(1, -1, 1, 1) * (at.q - at.k).abs()

    def split_alibi(self) -> tuple[Mask, Tensor | None]:
        return full, self.slopes

    def select(self, batch: Index, heads: Index) -> Mask:
        return Alibi(self.slopes[_on_device(heads, self.slopes)])

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if H in (None, len(self.slopes)):
            return None
        return f"expected a slope for each of the {H} heads, got {len(self.slopes)}"

    def __repr__(self) -> str:
        return f"alibi({len(self.slopes)})"


@dataclass(frozen=True, repr=False, eq=False)
class Relative(Mask, stored=True):
    """A number for every head and distance is added to the scores, as in T5: table[h, zero + k − q]."""

    table: Tensor
    """(H or 1, distances); its first and last column also serve all distances beyond them."""
    zero: int
    """The column of distance 0."""
    head_axes: ClassVar[dict[str, int]] = {"table": 0}
    biased = True
    hides = False
    translation_invariant = True

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.table.requires_grad

    def allowed(self, at: Grid) -> Tensor:
        return full.allowed(at)

    def score_bias(self, at: Grid) -> Tensor:
        distance = (at.k - at.q + self.zero).clamp(0, self.table.shape[1] - 1)
        heads = at.h if len(self.table) > 1 else torch.zeros_like(at.h[:, :1])
        return self.table.to(at.k.device)[heads, distance]

    def select(self, batch: Index, heads: Index) -> Mask:
        return self if len(self.table) == 1 else Relative(_take(self.table, 0, heads), self.zero)

    def extend(self, new: Sequence[Mask], T: int, S: int) -> Mask | None:
        """The numbers of every distance that one of the two tables has; where both have it, the old ones."""
        others = _of_class(Relative, new)
        if len(others) != 1:
            return None
        (other,) = others
        distances, other_distances = self.table.shape[1], other.table.shape[1]
        before = max(other.zero - self.zero, 0)
        after = max((other_distances - other.zero) - (distances - self.zero), 0)
        left, right = other.table[:, :before], other.table[:, other_distances - after :]
        return Relative(torch.cat([left, self.table, right], 1), self.zero + before)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if len(self.table) == 1 or H in (None, len(self.table)):
            return None
        return f"expected numbers for each of the {H} heads, got {len(self.table)}"

    def __repr__(self) -> str:
        return f"relative({_format_shape(self.table.shape)})"


def _of_class(kind: type[SomeMask], masks: Iterable[Mask]) -> list[SomeMask]:
    return [mask for mask in masks if isinstance(mask, kind)]


def _on_device(index: Index, tensor: Tensor) -> Index:
    return index.to(tensor.device) if isinstance(index, Tensor) else index


def _take(tensor: Tensor, dim: int, index: Index) -> Tensor:
    """Part of a dimension, unless it has one entry, which serves all."""
    if tensor.shape[dim] == 1:
        return tensor
    return tensor[(slice(None),) * dim + (_on_device(index, tensor),)]


def _append(table: Tensor, tail: Tensor) -> Tensor:
    """Two tables (B or 1, n) joined along their last dimension."""
    B = max(len(table), len(tail))
    return torch.cat([table.expand(B, -1), tail.to(table.device).expand(B, -1)], 1)


def _format_shape(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape)
