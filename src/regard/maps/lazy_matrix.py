"""`LazyMatrix`: a matrix for each sequence and head, (B, H, T, S), of which any tile can be computed.

It is what all maps share: shapes, indexing, and standing in for a tensor where a torch function wants one.
This file knows neither attention nor how a tile is computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.grid import Blocks
from regard.attention.tensors import check_floats
from regard.maps.index import Axes, parse_index
from regard.maps.spans import Spans, as_bounds, equal_bounds
from regard.maps.tile_passes.overview import Overview, Region, check_reduce, check_region

DENSE_LIMIT = 1 << 30  # bytes that `.to_dense()` may take unless a limit is given
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class LazyMatrix(ABC):
    """A matrix (B, H, T, S) of which tiles are computed on demand.

    `axes` says which of the batch and head axes are left to index.
    """

    axes: Axes
    signed: ClassVar[bool] = True
    """Whether entries may be below 0."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a picture of the first heads, and the map as text."""
        from regard.maps.picture import map_output

        return map_output(self, self.signed)

    @property
    @abstractmethod
    def matrix(self) -> tuple[int, int, int, int]:
        """(B, H, T, S), also where the batch or head axis was indexed away."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the entries."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that entries are computed on."""

    @abstractmethod
    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> Self:
        """Select the sequences `batch` and the `heads`; `axes`, by default the same, are left to index."""

    @abstractmethod
    def select_rows(self, rows: slice) -> Self:
        """Select a run of rows."""

    @abstractmethod
    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        """The entries of some rows and keys, each a slice or a tensor of indices: (B, H, rows, keys)."""

    @abstractmethod
    def to_dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix as a tensor (B, H, T, S); ValueError if it would take more than `limit` bytes."""

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same on another device or in another dtype; takes the arguments of `Tensor.to`."""

    @abstractmethod
    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> Overview:
        """Pool over spans between bounds (2, rows) and (2, cols); of both overviews, `reduce` is needed."""

    @abstractmethod
    def received(self, weights: Tensor | None = None) -> Tensor:
        """The sum of every column, (B, H, S), of rows times `weights` (B, H, T) if they are given."""

    @abstractmethod
    def diagonal(self, offset: int = 0) -> Tensor:
        """The entries [i, i + offset], (B, H, N)."""

    @abstractmethod
    def __matmul__(self, v: Tensor) -> Tensor:
        """The matrix times values v (…, S, E)."""

    def takes_values(self, v: Tensor) -> bool:
        """Whether `m @ v` takes values of this shape."""
        return self._expand_values(v) is not None

    def _check_values(self, v: Tensor) -> Tensor:
        """Return `v` if `m @ v` takes it; a ValueError says which shape was expected."""
        if not isinstance(v, Tensor) or not self.takes_values(check_floats("v", v)):
            lead = (*self.axes.visible((self.matrix[0], self._key_heads)), self.matrix[3])
            got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(f"v: expected ({', '.join(map(str, lead))}, E), got {got}")
        if v.device != self.device:
            raise ValueError(f"v: expected it on {self.device}, where the map is, got {v.device}")
        return v

    def _head_values(self, v: Tensor) -> Tensor:
        """`_check_values` as values of every key head or every head, (B, G or H, S, E)."""
        values = self._expand_values(self._check_values(v))
        assert values is not None
        return values

    @property
    def _key_heads(self) -> int:
        """How many heads its keys have, as many as values may have; H unless heads share their keys."""
        return self.matrix[1]

    def _expand_values(self, v: Tensor) -> Tensor | None:
        """Expand v (…, S, E) to one (S, E) for each sequence and head: (B, n, S, E), n the key heads or H.

        Leading dimensions broadcast to the axes that the map shows. Returns None if they do not fit.
        """
        B, H, _, S = self.matrix
        if v.ndim < 2 or v.shape[-2] != S:
            return None
        # dict.fromkeys: both counts are the same where heads share no keys.
        for n in dict.fromkeys((self._key_heads, H)):
            shown = self.axes.visible((B, n))
            lead = (1,) * (len(shown) - (v.ndim - 2)) + tuple(v.shape[:-2])
            if len(lead) == len(shown) and all(a in (1, b) for a, b in zip(lead, shown, strict=True)):
                return v.expand(*shown, *v.shape[-2:]).reshape(B, n, *v.shape[-2:])
        return None

    def visible_blocks(self, blocks: Blocks) -> Tensor:
        """Which of the blocks may hold an entry that is not 0, (R, C)."""
        return torch.ones(len(blocks.q_first), blocks.k_first.shape[1], dtype=torch.bool, device="cpu")

    @property
    def shape(self) -> torch.Size:
        """(B, H, T, S), without the axes that were indexed away."""
        return torch.Size((*self.axes.visible(self.matrix[:2]), *self.matrix[2:]))

    @property
    def ndim(self) -> int:
        """The number of dimensions, from 2 to 4."""
        return len(self.shape)

    def __len__(self) -> int:
        """The size of the first axis."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """A smaller map, or a tensor if the index names one row, a list of rows, or any keys."""
        part = parse_index(index, self.axes, self.matrix)
        m = self.select(part.batch, part.heads, part.axes)
        # Naming keys, one row or a list of rows gives a tensor.
        if isinstance(part.rows, slice) and not (part.names_keys or part.one_row):
            return m.select_rows(part.rows)
        entries = m.tile(part.rows, part.keys)  # (…, rows, keys)
        entries = entries.squeeze(-1) if part.one_key else entries
        return entries.squeeze(-1 if part.one_key else -2) if part.one_row else entries

    def pool(
        self,
        rows: int | Sequence[int] | Tensor | Spans,
        cols: int | Sequence[int] | Tensor | Spans,
        reduce: Literal["mass", "max", "both"] = "mass",
        *,
        region: Region | None = None,
    ) -> Tensor | Overview:
        """An exact overview with a cell for each span of queries and each span of keys.

        `rows` and `cols` are counts of spans as equal as can be, increasing edges such as [0, 3, 7, 12], or
        `Spans`. What lies before the first edge, after the last or between spans is left out.
        `reduce="mass"` sums the entries over the keys of a cell and averages over its queries, so that rows
        of attention weights sum to 1 if every key is in a span; "max" takes the entry of a cell that is
        largest, in magnitude where entries are signed; "both" gives both, as `.mass` and `.max`.
        `region=(slice of rows, slice of keys)` pools that part of the map alone, at that part's cost; the
        entries of its rows on other keys are not in the sums. Edges and spans count positions of the whole
        map also there.

        >>> import torch, regard
        >>> x = torch.eye(4)
        >>> m = regard.attention_map(x, x, mask=regard.causal)
        >>> m.pool(2, 2)
        tensor([[1.0000, 0.0000],
                [0.4892, 0.5108]])
        >>> m.pool([3, 4], [0, 1, 4])
        tensor([[0.2151, 0.7849]])
        >>> m.pool(2, 2, region=(slice(2, 4), slice(0, 2)))
        tensor([[0.2741, 0.2741],
                [0.2151, 0.2151]])
        """
        check_reduce(reduce)
        queries, keys = check_region(region, self.matrix)
        row_bounds = as_bounds("rows", rows, queries.start, queries.stop)
        col_bounds = as_bounds("cols", cols, keys.start, keys.stop)
        return self._pool(row_bounds, col_bounds, reduce).pick(reduce)

    def _equal_bounds(self, rows: int, cols: int) -> tuple[Tensor, Tensor]:
        """The bounds of so many spans of queries and of keys, as equal as can be."""
        row_bounds, col_bounds = (
            equal_bounds(n, check_whole_number(name, count, min(1, n), n))
            for name, count, n in zip(("rows", "cols"), (rows, cols), self.matrix[2:], strict=True)
        )
        return row_bounds, col_bounds

    def cpu(self) -> Self:
        """The map on the CPU."""
        return self.to("cpu")

    def _shaped(self, x: Tensor) -> Tensor:
        """A result (B, H, …) without the axes that were indexed away."""
        return x.reshape((*self.axes.visible(x.shape[:2]), *x.shape[2:]))

    def _expand(self, name: str, x: Tensor, length: int) -> Tensor:
        """One number for each of the `length` rows or keys of every head, (B, H, length), from `x`.

        x broadcasts to the axes that the map shows, and is converted to the map's dtype; errors call it
        `name`.
        """
        B, H = self.matrix[:2]
        shape = (*self.axes.visible((B, H)), length)
        # detach: what is computed from a map has no gradient to the factors.
        x = check_floats(name, x).detach()
        fits = x.ndim <= len(shape) and x.shape[-1:] == shape[-1:]
        if not fits or any(n not in (1, size) for n, size in zip(x.shape[::-1], shape[::-1], strict=False)):
            raise ValueError(
                f"{name}: expected a shape that broadcasts to {shape}, the last in full, got {tuple(x.shape)}"
            )
        if x.device != self.device:
            raise ValueError(f"{name}: expected it on {self.device}, where the map is, got {x.device}")
        if not bool(x.isfinite().all()):
            raise ValueError(
                f"{name}: expected finite numbers, got inf or NaN: pass .nan_to_num() of padding"
            )
        return x.to(self.dtype).expand(shape).reshape(B, H, length)

    def __getattr__(self, name: str) -> Any:
        """Only for names that a map does not have: say what a tensor's methods need."""
        # Names with an underscore are asked for by copy, pickle and notebooks, which expect a plain
        # AttributeError.
        hint = f": write .to_dense().{name}" if hasattr(Tensor, name) and not name.startswith("_") else ""
        kind = type(self).__name__
        raise AttributeError(f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind} has no {name!r}{hint}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.to_dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in MATMULS and not kwargs and isinstance(args[0], LazyMatrix) and isinstance(args[1], Tensor):
            m, v = args
            # A tensor with more dimensions broadcasts the map itself, which m @ v does not.
            if m.ndim >= v.ndim and m.takes_values(v):
                return m @ v

        def to_dense(x: Any) -> Any:
            if isinstance(x, LazyMatrix):
                return x.to_dense()
            # Exact types: a NamedTuple cannot be made of a generator.
            return type(x)(to_dense(y) for y in x) if type(x) in (list, tuple) else x

        return func(*to_dense(tuple(args)), **{name: to_dense(x) for name, x in (kwargs or {}).items()})


def refuse_large(size: int, limit: int) -> None:
    """Raise ValueError if a tensor of `size` bytes would exceed the limit."""
    if size > limit:
        raise ValueError(
            f"this would take {size / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB: "
            "use .pool(256, 256), one row m[b, h, i] or a tile m[b, h, i0:i1, j0:j1] instead"
        )
