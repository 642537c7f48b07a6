"""`AttentionMap`: the attention weights of a layer, computed on demand.

A map keeps q, k and the row log-sum-exp; any weight is exp(score(q_i, k_j) − lse_i), exactly. Memory grows
with T, not with T². This file is the API: it checks arguments, gives results their shape, and knows neither
tokens nor models. The fields are in `data.py`; `sweep.py`, `overview.py` and `dense_rows.py` compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from regard.attention.arguments import answer_pytorch_arguments, check_whole_number
from regard.attention.attend import attend
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.attention.tensors import check_floats, check_tensor
from regard.maps import overview, precision, storage, sweep
from regard.maps.data import MapData
from regard.maps.dense_rows import NORMALISED, tile_weights
from regard.maps.index import Axes, parse_index
from regard.maps.product import expand_values, multiply

MIN_NORMALISED_ROWS = 64  # first rows of a matrix: under a causal mask they have few keys with large weights
DENSE_LIMIT = 1 << 30  # bytes that `.to_dense()` may take unless a limit is given
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


@answer_pytorch_arguments
def attention_map(
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> AttentionMap:
    """The attention weights of q (B, H, T, D) on k (B, G, S, D), as a map that stores no T×S matrix.

    `mask`, `scale` (by default D^-½), `softcap` and `sinks` (H,) are those of `regard.attend`. `lse` is the
    row log-sum-exp if it is known already, as from `attend(..., return_lse=True)`.

    >>> import torch, regard
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> m = regard.attention_map(x, x, mask=regard.causal)
    >>> m
    AttentionMap(3×3, causal, float32, 60 bytes)
    >>> m[1]
    tensor([0.3302, 0.6698, 0.0000])
    """
    shape, rule, scale = check_inputs(q, k, k, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    check_tensor("q", q)  # a map needs values
    if q.ndim > 4:
        raise ValueError(f"q: expected at most 4 dimensions (B, H, T, D), got {tuple(q.shape)}")
    if lse is not None:
        check_floats("lse", lse)
        if tuple(lse.shape) != tuple(q.shape[:-1]):
            raise ValueError(
                f"lse: expected {tuple(q.shape[:-1])}, one number a query, got {tuple(lse.shape)}"
            )
        if lse.device != q.device:
            raise ValueError(f"lse: expected it on {q.device}, where q is, got {lse.device}")
    axes = Axes(batch=q.ndim == 4, heads=q.ndim >= 3)
    q = q.detach().reshape(shape.B, shape.H, shape.T, shape.D)
    k = k.detach().reshape(shape.B, shape.G, shape.S, shape.D)
    sinks = None if sinks is None else sinks.detach()
    with torch.no_grad():
        if lse is None:
            lse = attend(q, k, k, mask=rule, scale=scale, softcap=softcap, sinks=sinks, return_lse=True)[1]
    lse = lse.detach().reshape(q.shape[:-1]).to(working_dtype(q.dtype))
    return AttentionMap(q=q, k=k, lse=lse, mask=rule, scale=scale, softcap=softcap, sinks=sinks, axes=axes)


def load(path: str | PathLike[str]) -> AttentionMap:
    """Open a map that was saved with `m.save(path)`. Its tensors are read from the file on use."""
    return AttentionMap.from_data(storage.load(path))


class TopK(NamedTuple):
    """The largest weights of every row, largest first, as `torch.topk` gives them."""

    values: Tensor  # (B, H, T, k)
    indices: Tensor  # (B, H, T, k) the keys; −1 where a row has fewer visible keys


class AttentionMap(MapData):
    """Attention weights shaped (B, H, T, S), without the matrix. Made by `regard.attention_map` or a capture.

    A map is indexed like a tensor. Naming heads or a slice of rows gives a smaller map; naming one row, a
    list of rows, or any keys gives a tensor. `m @ values` is the fused product. Any other torch function
    takes a map as its dense tensor.

    Its fields are `q` (B, H, T, D), `k` (B, G, S, D) and the row log-sum-exp `lse` (B, H, T); `mask`,
    `scale`, `softcap` and the sink logits `sinks` (H,); `axes`, which says whether the batch and head axes
    are left to index; and `precise`, the heads that are computed in float64, found on first use.
    """

    @classmethod
    def from_data(cls, data: MapData) -> Self:
        """A map with the fields of `data`, for example with those that a file holds."""
        return cls(**{name.removeprefix("_"): value for name, value in vars(data).items()})

    @property
    def shape(self) -> torch.Size:
        """(B, H, T, S), without the axes that were indexed away."""
        return torch.Size((*self.axes.visible(self.matrix[:2]), *self.matrix[2:]))

    @property
    def ndim(self) -> int:
        """The number of dimensions, from 2 to 4."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of q, k and lse."""
        return sum(x.nbytes for x in (self.q, self.k, self.lse))

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.shape)
        memory = f"{self.nbytes / 2**20:.1f} MiB" if self.nbytes >= 1 << 19 else f"{self.nbytes} bytes"
        settings = [str(self.mask)]
        if self.softcap is not None:
            settings.append(f"soft cap {self.softcap:g}")
        if self.sinks is not None:
            settings.append("sink logits")
        dtype = str(self.q.dtype).removeprefix("torch.")
        return f"AttentionMap({size}, {', '.join(settings)}, {dtype}, {memory})"

    def __len__(self) -> int:
        """The size of the first axis."""
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """A smaller map, or a tensor if the index names one row, a list of rows, or any keys."""
        part = parse_index(index, self.axes, self.matrix)
        m = self.select(part.batch, part.heads, part.axes)
        if part.gives_map and isinstance(part.rows, slice):
            return m.select_rows(part.rows)
        weights = m.tile(part.rows, part.keys)  # (…, rows, keys)
        weights = weights.squeeze(-1) if part.one_key else weights
        return weights.squeeze(-1 if part.one_key else -2) if part.one_row else weights

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        """The weights of some rows and some keys, each a slice or a tensor of indices: (B, H, rows, keys)."""
        at = grid(rows, keys, self.matrix, self.device)
        B, H = self.matrix[:2]
        _refuse_large(B * H * at.q.numel() * at.k.numel() * self.dtype.itemsize, DENSE_LIMIT)
        (weights,) = precision.compute(self, lambda group: [tile_weights(group.data, at)], at.rows)
        return self._shaped(weights)

    def precise_lse(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """The row log-sum-exp that the weights of some rows are computed with, (B, H, rows) in float64."""
        return precision.precise_lse(self, rows)

    def _shaped(self, x: Tensor) -> Tensor:
        """A result (B, H, …) without the axes that were indexed away."""
        return x.reshape((*self.axes.visible(x.shape[:2]), *x.shape[2:]))

    def to_dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix as a tensor (B, H, T, S); ValueError if it would take more than `limit` bytes."""
        B, H, T, S = self.matrix
        _refuse_large(B * H * T * S * self.dtype.itemsize, limit)
        dense = self.q.new_zeros(B, H, T, S, dtype=self.dtype)
        for group in precision.head_groups(self):
            part = dense[group.batch, group.heads]
            for tile in sweep.log_tiles(group.data):
                part[tile.batch, tile.heads, tile.rows, tile.keys] = tile.logs.exp_()
            few = slice(0, max(NORMALISED // max(B * H * S, 1), MIN_NORMALISED_ROWS))
            sweep.normalise_rows_(group.data, part[:, :, few], few)
        return self._shaped(dense)

    def pool(
        self,
        rows: int,
        cols: int,
        reduce: Literal["mass", "max", "both"] = "mass",
        *,
        region: overview.Region | None = None,
    ) -> Tensor | overview.Overview:
        """An exact overview with `rows` × `cols` cells: bins of queries and keys, as equal as can be.

        `reduce="mass"` sums the weights over the keys of a cell and averages over its queries, so that rows
        sum to 1; "max" takes the largest weight of a cell; "both" gives both from one pass, as `.mass` and
        `.max`. `region=(slice of rows, slice of keys)` pools that part of the map alone, at that part's cost;
        the weights of its rows on other keys are not in the sums.

        >>> import torch, regard
        >>> x = torch.eye(4)
        >>> regard.attention_map(x, x, mask=regard.causal).pool(2, 2)
        tensor([[1.0000, 0.0000],
                [0.4892, 0.5108]])
        >>> regard.attention_map(x, x, mask=regard.causal).pool(2, 2, region=(slice(2, 4), slice(0, 2)))
        tensor([[0.2741, 0.2741],
                [0.2151, 0.2151]])
        """
        if reduce not in ("mass", "max", "both"):
            raise ValueError(f"reduce: expected 'mass', 'max' or 'both', got {reduce!r}")
        part: MapData = self
        if region is not None:
            part = precision.select_region(self, *overview.check_region(region, self.matrix))
        cells = precision.compute(part, lambda group: overview.pool(group.data, rows, cols))
        both = overview.Overview(*map(self._shaped, cells))
        return both if reduce == "both" else both.mass if reduce == "mass" else both.max

    def summary(self, rows: int, cols: int) -> overview.MapSummary:
        """Both overviews and all statistics: `.mass`, `.max`, `.entropy`, `.distance` and `.received`.

        They are those of `pool(rows, cols, "both")` and `statistics()`, on a CPU from one pass over the map.
        """
        results = precision.compute(self, lambda group: overview.summary(group.data, rows, cols))
        return overview.MapSummary(*map(self._shaped, results))

    def statistics(self) -> sweep.RowStatistics:
        """`.entropy` and `.distance` of every row and what every key has `.received`, from one pass."""
        results = precision.compute(self, lambda group: overview.statistics(group.data))
        return sweep.RowStatistics(*map(self._shaped, results))

    def entropy(self) -> Tensor:
        """−Σ A ln A of every row, in nats, (B, H, T): 0 for one key, ln n for uniform attention to n keys."""
        return self.statistics().entropy

    def distance(self) -> Tensor:
        """The mean distance of every row, Σ A · (position of the query − key), (B, H, T)."""
        return self.statistics().distance

    def received(self) -> Tensor:
        """The attention that each key receives, summed over the queries, (B, H, S)."""
        return self.statistics().received

    def mass(self, rule: Mask) -> Tensor:
        """The share of every row under a mask `rule`, such as `window(8)` or `prefix(1)`, (B, H, T).

        >>> import torch, regard
        >>> x = torch.zeros(4, 2)
        >>> regard.attention_map(x, x, mask=regard.causal).mass(regard.window(2))
        tensor([1.0000, 1.0000, 0.6667, 0.5000])
        """
        if not isinstance(rule, Mask):
            raise ValueError(f"rule: expected a mask rule, as regard.window(8), got {type(rule).__name__}")
        if rule.biased:
            raise ValueError(f"rule: expected a rule that says yes or no, but {rule} adds to the scores")
        joint = self.mask.restrict(rule)  # which counts positions as before rows were selected
        joint.check(self.matrix)
        (mass,) = precision.compute(
            self, lambda group: [sweep.mass(group.data, joint.select(group.batch, group.heads))]
        )
        return self._shaped(mass)

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as `torch.diagonal` numbers them; `offset=-1` is the previous token.

        This takes as many dot products as the diagonal is long.
        """
        _, _, T, S = self.matrix
        first = max(0, -offset)
        length = max(0, min(T - first, S - offset - first))
        index = torch.arange(first, first + length, device=self.device)
        rows = slice(first, first + length)
        (weights,) = precision.compute(
            self, lambda group: [sweep.entries(group.data, index, index + offset)], rows
        )
        return self._shaped(weights)

    def topk(self, k: int) -> TopK:
        """The k largest weights of every row as `(values, indices)`, each (B, H, T, k).

        As in `torch.topk` along the keys, but an index is −1 where a row has fewer than k visible keys.
        """
        k = check_whole_number("k", k, 1, max(self.matrix[3], 1))
        return TopK(*map(self._shaped, precision.compute(self, lambda group: sweep.topk(group.data, k))))

    def __matmul__(self, v: Tensor) -> Tensor:
        """The weights times values v (B, G, S, E), by fused attention: the output (B, H, T, E).

        v has a head for each key/value head or for each query head; leading dimensions broadcast as in
        `torch.matmul`. Gradients flow to v.

        >>> import torch, regard
        >>> x, v = torch.zeros(4, 2), torch.arange(4.0)[:, None]
        >>> (regard.attention_map(x, x, mask=regard.causal) @ v).flatten()
        tensor([0.0000, 0.5000, 1.0000, 1.5000])
        """
        if isinstance(v, Tensor):
            check_floats("v", v)
            if v.device != self.device:
                raise ValueError(f"v: expected it on {self.device}, where the map is, got {v.device}")
            if (values := expand_values(self, v)) is not None:
                return self._shaped(multiply(self, values))
        lead = (*self.axes.visible((self.matrix[0], self.k.shape[1])), self.matrix[3])
        got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
        raise ValueError(f"v: expected ({', '.join(map(str, lead))}, E), got {got}")

    def to(self, *args: Any, **kwargs: Any) -> AttentionMap:
        """The map on another device or with q and k in another dtype; takes the arguments of `Tensor.to`."""
        q, k = self.q.to(*args, **kwargs), self.k.to(*args, **kwargs)
        lse = self.lse.to(device=q.device, dtype=working_dtype(q.dtype))
        sinks = None if self.sinks is None else self.sinks.to(q.device)
        exact = torch.promote_types(q.dtype, self.q.dtype) == q.dtype  # no number of q and k has changed
        return self._with(
            q=q, k=k, lse=lse, sinks=sinks, precise=self.precise.to(q.device) if exact else None
        )

    def __getattr__(self, name: str) -> Any:
        """Only for names that a map does not have: say what a tensor's methods need."""
        hint = f": write .to_dense().{name}" if hasattr(Tensor, name) and not name.startswith("_") else ""
        raise AttributeError(f"an AttentionMap has no {name!r}{hint}")

    def cpu(self) -> AttentionMap:
        """The map on the CPU."""
        return self.to("cpu")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a safetensors file, atomically; `regard.load(path)` opens it again."""
        storage.save(self, path)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.to_dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if (
            func in MATMULS
            and not kwargs
            and isinstance(args[0], AttentionMap)
            and isinstance(args[1], Tensor)
        ):
            m, v = args
            if m.ndim >= v.ndim and expand_values(m, v) is not None:
                return m @ v

        def to_dense(x: Any) -> Any:
            if isinstance(x, AttentionMap):
                return x.to_dense()
            return type(x)(to_dense(y) for y in x) if type(x) in (list, tuple) else x

        return func(*to_dense(tuple(args)), **{name: to_dense(x) for name, x in (kwargs or {}).items()})


def _refuse_large(size: int, limit: int) -> None:
    """Raise ValueError if a tensor of `size` bytes would exceed the limit."""
    if size > limit:
        raise ValueError(
            f"this would take {size / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB: "
            "use .pool(256, 256), one row m[b, h, i] or a tile m[b, h, i0:i1, j0:j1] instead"
        )
