"""`SignedMap`: a lazy matrix with entries of either sign, whose rows need not sum to 1; and `DifferenceMap`.

A subclass says how to compute a tile; everything here follows from that, a few tiles at a time. It overrides
what its structure makes cheaper: the mean row mass of a difference is the difference of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.grid import Blocks
from regard.maps.index import Axes, diagonal_spans
from regard.maps.lazy_matrix import DENSE_LIMIT, LazyMatrix, refuse_large
from regard.maps.tile_passes.bins import Bins, TileSide, block_table, find_runs, make_bins, whole_bins
from regard.maps.tile_passes.overview import Overview, larger_magnitude

TILE_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 26}  # entries that are computed at a time
REDUCTIONS: tuple[Literal["sum", "amax", "amin"], ...] = ("sum", "amax", "amin")
SIDES = 16, 512  # the least and the greatest length of a tile's side on a CPU


class TopK(NamedTuple):
    """The largest weights of every row, largest first, as `torch.topk` gives them."""

    values: Tensor  # (B, H, T, k)
    indices: Tensor  # (B, H, T, k) the keys; −1 where a row has fewer visible keys


class SignedTile(NamedTuple):
    """The entries between two sides of places."""

    q: TileSide
    k: TileSide
    entries: Tensor  # (…, places of queries, places of keys)


class SignedMap(LazyMatrix):
    """A matrix (B, H, T, S) with entries of either sign that is computed on demand.

    It is indexed, pooled and multiplied as an `AttentionMap` is. `weighted(u)` of a map is one, and so is the
    difference of two maps.
    """

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.shape)
        return f"{type(self).__name__}({size}, {str(self.dtype).removeprefix('torch.')})"

    def __sub__(self, other: object) -> DifferenceMap:
        return DifferenceMap(self, other) if isinstance(other, LazyMatrix) else NotImplemented

    def to_dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        refuse_large(math.prod(self.shape) * self.dtype.itemsize, limit)
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        q_bins, k_bins = self._whole_bins()
        for q, k, entries in self._tiles(q_bins, k_bins):
            dense[..., q.first : q.last + 1, k.first : k.last + 1] = entries
        return dense

    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> Overview:
        q_bins, k_bins = (make_bins(bounds, self._side(), self.device) for bounds in (rows, cols))
        shape = (3, cols.shape[1], rows.shape[1], *self.shape[:-2])
        sums, tops, lows = torch.zeros(shape, dtype=self.dtype, device=self.device)
        for q, k, entries in self._tiles(q_bins, k_bins):
            at, by_query = (k.bins, q.bins), entries.movedim(-2, 0)  # (queries, …, keys)
            added, top, low = (
                k_bins.join(q_bins.join(by_query, q, how).movedim(-1, 0), k, how) for how in REDUCTIONS
            )
            sums[at] += added
            tops[at], lows[at] = torch.maximum(tops[at], top), torch.minimum(lows[at], low)
        mass, most = (x.movedim((0, 1), (-1, -2)) for x in (sums, larger_magnitude(tops, lows)))
        return Overview(mass / q_bins.sizes[:, None], most)

    def topk(self, k: int) -> TopK:
        """The k entries of largest magnitude of every row as `(values, indices)`, each (B, H, T, k).

        Values are signed; an index is −1 where a row has fewer than k entries that are not 0.
        """
        k = check_whole_number("k", k, 1, max(self.shape[-1], 1))
        shape = (*self.shape[:-1], k)
        values = torch.zeros(shape, dtype=self.dtype, device=self.device)
        indices = torch.full(shape, -1, device=self.device)
        for q, keys, entries in self._tiles(*self._whole_bins()):
            rows = slice(q.first, q.last + 1)
            index = torch.arange(keys.first, keys.last + 1, device=self.device).expand_as(entries)
            entries = torch.cat([values[..., rows, :], entries], -1)
            index = torch.cat([indices[..., rows, :], index], -1)
            order = entries.abs().topk(k, dim=-1).indices
            values[..., rows, :], indices[..., rows, :] = entries.gather(-1, order), index.gather(-1, order)
        return TopK(values, indices.masked_fill_(values == 0, -1))

    def row_sums(self) -> Tensor:
        """The sum of every row, (B, H, T)."""
        return (self @ torch.ones(self.shape[-1], 1, dtype=self.dtype, device=self.device)).squeeze(-1)

    def received(self, weights: Tensor | None = None) -> Tensor:
        T = self.shape[-2]
        if weights is None:
            weights = torch.ones(T, dtype=self.dtype, device=self.device)
        return self._received(self._shaped(self._expand("weights", weights, T)))

    def _received(self, row_weights: Tensor) -> Tensor:
        """wᵀ times the matrix, for row weights in the map's own shape (…, T)."""
        total = torch.zeros(*self.shape[:-2], self.shape[-1], dtype=self.dtype, device=self.device)
        rows = row_weights.ne(0).reshape(-1, row_weights.shape[-1]).any(0).nonzero().flatten().cpu()
        if not len(rows) or not total.numel():
            return total
        q_bins = make_bins(find_runs(rows), self._side(), self.device)
        k_bins = self._whole_bins()[1]
        for q, k, entries in self._tiles(q_bins, k_bins):
            part = row_weights[..., q_bins.places[q.places]].unsqueeze(-2) @ entries
            total[..., k.first : k.last + 1] += part.squeeze(-2)
        return total

    def __matmul__(self, v: Tensor) -> Tensor:
        """The entries times values v (B, H, S, E): (B, H, T, E). Leading dimensions of v broadcast."""
        values = self._check_values(v)
        lead = self.shape[:-2]
        output = torch.zeros(*lead, self.shape[-2], v.shape[-1], dtype=v.dtype, device=self.device)
        for q, k, entries in self._tiles(*self._whole_bins()):
            part = entries @ values[..., k.first : k.last + 1, :].to(entries.dtype)
            output[..., q.first : q.last + 1, :] += part.to(v.dtype)
        return output

    def diagonal(self, offset: int = 0) -> Tensor:
        """The entries [i, i + offset], as `torch.diagonal` numbers them; −1 is the previous token."""
        rows, _ = diagonal_spans(offset, *self.shape[-2:])
        parts = [torch.zeros(*self.shape[:-2], 0, dtype=self.dtype, device=self.device)]
        # Tiles of 16 × 16 along the diagonal: a sixteenth of what is computed is used, and nothing more is
        # stored.
        for i in range(rows.start, rows.stop, SIDES[0]):
            j = min(i + SIDES[0], rows.stop)
            square = self.tile(slice(i, j), slice(i + offset, j + offset))
            parts.append(square.diagonal(dim1=-2, dim2=-1))
        return torch.cat(parts, -1)

    def _tiles(self, q_bins: Bins, k_bins: Bins) -> Iterator[SignedTile]:
        """Every tile between the sides of two bins that may hold an entry that is not 0."""
        if not math.prod(self.shape):
            return
        visible = self.visible_blocks(block_table(q_bins, k_bins, *self.shape[-2:])).tolist()
        for i, q in enumerate(q_bins.sides):
            for j, k in enumerate(k_bins.sides):
                if visible[i][j]:
                    yield SignedTile(q, k, self.tile(q_bins.places[q.places], k_bins.places[k.places]))

    def _side(self) -> int:
        """The length of a tile's sides, so that a tile of all heads fits the cache."""
        numbers = TILE_NUMBERS["cuda" if self.device.type == "cuda" else "cpu"]
        least, most = SIDES
        side = math.isqrt(numbers // max(math.prod(self.shape[:-2]), 1))
        # A GPU has no upper limit: its tiles are bounded by their numbers alone.
        return max(least, min(side, most if self.device.type == "cpu" else side))

    def _whole_bins(self) -> tuple[Bins, Bins]:
        q_bins, k_bins = (whole_bins(n, self._side(), self.device) for n in self.shape[-2:])
        return q_bins, k_bins


class DifferenceMap(SignedMap):
    """The entries of one map minus those of another of the same shape, computed on demand: `a - b`.

    Its fields are the two maps, `left` and `right`.

    >>> import torch, regard
    >>> x = torch.eye(3)
    >>> regard.attention_map(x, x) - regard.attention_map(x, x, mask=regard.causal)
    DifferenceMap(3×3, float32)
    """

    def __init__(self, left: LazyMatrix, right: LazyMatrix) -> None:
        if (left.shape, left.axes) != (right.shape, right.axes):
            raise ValueError(
                f"a - b: expected two maps of one shape, got {tuple(left.shape)} and {tuple(right.shape)}; "
                "index or pool them to the same size first"
            )
        if left.device != right.device:
            raise ValueError(
                f"a - b: expected two maps on one device, got {left.device} and {right.device}: "
                f"write a - b.to({str(left.device)!r})"
            )
        self.left, self.right = left, right
        self.axes: Axes = left.axes

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        return self.left.matrix

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.left.dtype, self.right.dtype)

    @property
    def device(self) -> torch.device:
        return self.left.device

    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> Self:
        return type(self)(*(m.select(batch, heads, axes) for m in (self.left, self.right)))

    def select_rows(self, rows: slice) -> Self:
        return type(self)(*(m.select_rows(rows) for m in (self.left, self.right)))

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        return self.left.tile(rows, keys) - self.right.tile(rows, keys)

    def visible_blocks(self, blocks: Blocks) -> Tensor:
        return self.left.visible_blocks(blocks) | self.right.visible_blocks(blocks)

    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> Overview:
        if reduce != "mass":
            return super()._pool(rows, cols, reduce)
        left, right = (m._pool(rows, cols, reduce).mass for m in (self.left, self.right))
        return Overview(left - right, left.new_zeros(()))  # nobody reads the maximum

    def _received(self, row_weights: Tensor) -> Tensor:
        left, right = (m.received(row_weights) for m in (self.left, self.right))
        return left - right

    def __matmul__(self, v: Tensor) -> Tensor:
        """The difference of the products of both maps with values v (B, H, S, E)."""
        values = self._check_values(v)
        left, right = (m @ values for m in (self.left, self.right))
        return left - right

    def takes_values(self, v: Tensor) -> bool:
        return all(m.takes_values(v) for m in (self.left, self.right))

    def diagonal(self, offset: int = 0) -> Tensor:
        left, right = (m.diagonal(offset) for m in (self.left, self.right))
        return left - right

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The map on another device or with another dtype; takes the arguments of `Tensor.to`."""
        return type(self)(self.left.to(*args, **kwargs), self.right.to(*args, **kwargs))
