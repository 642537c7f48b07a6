"""`AttentionMap`: every weight of an attention, computed when someone looks.

It keeps q, k and the row log-sum-exp; any weight is exp(score(q_i, k_j) − lse_i), exactly. Memory grows with
T, not with T². This file knows how to index and describe a map; `sweep` and `overview` know how to sum it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.grids import grid
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.rules import Keys, Mask, Rows
from regard.maps import overview, sweep
from regard.maps.index import Axes, heads_of, parse

DENSE_LIMIT = 1 << 30  # bytes that `.dense()` may take unless told otherwise


def weights(
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

    `lse` is the row log-sum-exp if it is known already, as from `attend(..., return_lse=True)`.

    >>> import torch, regard
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> map = regard.weights(x, x, mask=regard.causal)
    >>> map
    AttentionMap(3×3, causal, float32, 60 bytes)
    >>> map[1, 0:2]
    tensor([0.3302, 0.6698])
    """
    shape, rule, scale = check_inputs(q, k, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    if q.ndim > 4:
        raise ValueError(f"q: expected at most 4 dimensions (B, H, T, D), got {tuple(q.shape)}")
    if lse is not None and tuple(lse.shape) != tuple(q.shape[:-1]):
        raise ValueError(f"lse: expected {tuple(q.shape[:-1])}, one number a query, got {tuple(lse.shape)}")
    axes = Axes(batch=q.ndim == 4, heads=q.ndim >= 3, rows=True)
    q, k = (x.detach().reshape(shape.B, -1, *x.shape[-2:]) for x in (q, k))
    sinks = None if sinks is None else sinks.detach()
    with torch.no_grad():
        if lse is None:
            lse = attend(q, k, k, mask=rule, scale=scale, softcap=softcap, sinks=sinks, return_lse=True)[1]
    lse = lse.detach().reshape(q.shape[:-1]).to(working_dtype(q.dtype))
    return AttentionMap(q, k, lse, rule, scale, softcap, sinks, axes)


class Top(NamedTuple):
    """The greatest weights of every row, greatest first; key −1 where there are fewer to see."""

    weights: Tensor  # (B, H, T, n)
    keys: Tensor  # (B, H, T, n)


class AttentionMap:
    """Attention weights shaped (B, H, T, S), without the matrix. Made by `regard.weights` or a capture.

    Indexes like a tensor: naming heads or rows gives a smaller map, naming keys too gives a tensor.
    In a torch function a map stands for its dense tensor.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        lse: Tensor,
        mask: Mask,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        axes: Axes = Axes(),  # noqa: B008 (immutable)
    ) -> None:
        self.q = q  # (B, H, T, D)
        self.k = k  # (B, G, S, D)
        self.lse = lse  # (B, H, T)
        self.mask = mask
        self.scale = scale
        self.softcap = softcap
        self.sinks = sinks  # (H,), already counted in lse
        self.axes = axes  # which of batch, heads and rows are still there to index

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """(B, H, T, S), also where an axis was indexed away."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.axes.visible(self.matrix[:3]), self.matrix[3]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that weights are computed in."""
        return working_dtype(self.q.dtype)

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def nbytes(self) -> int:
        """What the map keeps in memory: q, k and lse."""
        return sum(x.nbytes for x in (self.q, self.k, self.lse))

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.shape)
        kept = f"{self.nbytes / 2**20:.1f} MiB" if self.nbytes >= 1 << 19 else f"{self.nbytes} bytes"
        return f"AttentionMap({size}, {self.mask}, {str(self.q.dtype).removeprefix('torch.')}, {kept})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        chosen = parse(index, self.axes, self.matrix)
        small = self._narrowed(chosen.batch, chosen.heads, chosen.axes)
        if chosen.keys is None:
            return (
                small._some_rows(chosen.rows) if isinstance(chosen.rows, slice) else small.tile(chosen.rows)
            )
        tile = small.tile(chosen.rows, chosen.keys)
        return tile.squeeze(-1) if chosen.one_key else tile

    def _narrowed(self, batch: slice, heads: slice, axes: Axes) -> AttentionMap:
        q, lse = self.q[batch, heads], self.lse[batch, heads]
        k = heads_of(self.k[batch], heads, self.q.shape[1])
        sinks = None if self.sinks is None else self.sinks[heads]
        mask = self.mask.narrowed(batch, heads)
        return AttentionMap(q, k, lse, mask, self.scale, self.softcap, sinks, axes)

    def _some_rows(self, rows: slice) -> AttentionMap:
        T = self.matrix[2]
        if rows == slice(0, T):
            return self
        mask = Rows(self.mask, rows.start, T)
        q, lse = self.q[:, :, rows], self.lse[:, :, rows]
        return AttentionMap(q, self.k, lse, mask, self.scale, self.softcap, self.sinks, self.axes)

    def _within(self, rows: slice, keys: slice) -> AttentionMap:
        """The map of some rows and some keys alone; its rows need not sum to 1."""
        some = self._some_rows(rows)
        S = self.matrix[3]
        if keys == slice(0, S):
            return some
        mask, k = Keys(some.mask, keys.start, S), self.k[:, :, keys]
        return AttentionMap(some.q, k, some.lse, mask, self.scale, self.softcap, self.sinks, self.axes)

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        """The weights of some rows and some keys, computed now: one product and one exp."""
        at = grid(rows, keys, self.matrix, self.device)
        q = self.q[:, :, at.rows].to(self.dtype) * self.scale
        k = self.k[:, :, at.cols].to(self.dtype)  # (B, G, keys, D)
        (B, H, T, D), (_, G, S, _) = q.shape, k.shape
        _refuse_large(B * H * T * S * self.dtype.itemsize, DENSE_LIMIT)
        # The heads that share a key/value head, one below another: its keys are read once.
        s = (q.reshape(B, G, H // G * T, D) @ k.mT).view(B, H, T, S)
        if self.softcap is not None:
            s.div_(self.softcap).tanh_().mul_(self.softcap)
        if (added := self.mask.added(at)) is not None:
            s.add_(added.detach())
        s.masked_fill_(~self.mask.allowed(at), -torch.inf)
        return self._shaped(s.sub_(sweep.anchored(self.lse[:, :, at.rows, None])).exp_())

    def _shaped(self, x: Tensor) -> Tensor:
        """A result (B, H, T, …) without the axes that were indexed away."""
        return x.reshape((*self.axes.visible(x.shape[:3]), *x.shape[3:]))

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix as a tensor; refused if it would take more than `limit` bytes."""
        B, H, T, S = self.matrix
        _refuse_large(B * H * T * S * self.dtype.itemsize, limit)
        out = self.q.new_zeros(B, H, T, S, dtype=self.dtype)
        for patch in sweep.patches(self):
            out[patch.batch, patch.heads, patch.rows, patch.keys] = patch.logs.exp_()
        return self._shaped(out)

    def pool(
        self,
        rows: int,
        cols: int,
        reduce: Literal["mass", "max", "both"] = "mass",
        *,
        region: overview.Region | None = None,
    ) -> Tensor | overview.Overview:
        """An exact overview with `rows` × `cols` cells: bins of queries and keys, as equal as can be.

        "mass" sums the weights over the keys of a cell and averages over its queries, so that rows sum to 1;
        "max" is the greatest weight in it; "both" gives both from one pass, as `.mass` and `.max`.
        `region=(slice of rows, slice of keys)` looks at that part of the map alone, at that part's cost; what
        its rows give to other keys is not in the sums.

        >>> import torch, regard
        >>> x = torch.eye(4)
        >>> regard.weights(x, x, mask=regard.causal).pool(2, 2)
        tensor([[1.0000, 0.0000],
                [0.4892, 0.5108]])
        >>> regard.weights(x, x, mask=regard.causal).pool(2, 2, region=(slice(2, 4), slice(0, 2)))
        tensor([[0.2741, 0.2741],
                [0.2151, 0.2151]])
        """
        if reduce not in ("mass", "max", "both"):
            raise ValueError(f"reduce: expected 'mass', 'max' or 'both', got {reduce!r}")
        self._check_rows("pool")
        part = self if region is None else self._within(*overview.spans(region, self.matrix))
        both = overview.Overview(*(self._shaped(x) for x in overview.pool(part, rows, cols)))
        return both if reduce == "both" else both.mass if reduce == "mass" else both.max

    def summary(self, rows: int, cols: int) -> overview.Summary:
        """Both overviews and all statistics: `.mass`, `.max`, `.entropy`, `.distance` and `.received`.

        What `pool(rows, cols, "both")` and `statistics()` give, on a CPU from one pass over the map.
        """
        self._check_rows("summary")
        found = overview.summary(self, rows, cols)
        mass, most, entropy, distance = (self._shaped(x) for x in found[:4])
        return overview.Summary(mass, most, entropy, distance, self._shaped_keys(found.received))

    def _check_rows(self, what: str) -> None:
        if not self.axes.rows:
            raise ValueError(
                f"{what}: expected a map with rows, got one row: index a slice, map[b, h, i:i+1]"
            )

    def statistics(self) -> sweep.Statistics:
        """Entropy and distance of every row and what every key receives, from one pass over the map."""
        found = overview.statistics(self)
        return sweep.Statistics(
            self._shaped(found.entropy), self._shaped(found.distance), self._shaped_keys(found.received)
        )

    def entropy(self) -> Tensor:
        """−Σ A ln A of every row, in nats: 0 looks at one key, ln n at n keys alike. Shape (B, H, T)."""
        return self._shaped(overview.statistics(self).entropy)

    def distance(self) -> Tensor:
        """How far back every row looks: Σ A · (position of the query − key). Shape (B, H, T)."""
        return self._shaped(overview.statistics(self).distance)

    def received(self) -> Tensor:
        """The attention that each key gets, summed over the queries. Shape (B, H, S)."""
        return self._shaped_keys(overview.statistics(self).received)

    def _shaped_keys(self, x: Tensor) -> Tensor:
        B, H = x.shape[:2]
        return x.reshape((*self.axes._replace(rows=False).visible((B, H, 1)), *x.shape[2:]))

    def mass(self, rule: Mask) -> Tensor:
        """The share of every row that falls under a mask rule, such as `window(8)` or `prefix(1)`. (B, H, T).

        >>> import torch, regard
        >>> x = torch.zeros(4, 2)
        >>> regard.weights(x, x, mask=regard.causal).mass(regard.window(2))
        tensor([1.0000, 1.0000, 0.6667, 0.5000])
        """
        if not isinstance(rule, Mask):
            raise ValueError(f"rule: expected a mask rule, as regard.window(8), got {type(rule).__name__}")
        if rule.biased:
            raise ValueError(f"rule: expected a rule that says yes or no, but {rule} adds to the scores")
        inner = self.mask
        # Only some rows kept: the rule, too, speaks of where they stood among all.
        if isinstance(inner, Rows):
            joint: Mask = Rows(inner.inner & rule, inner.first, inner.T)
        else:
            joint = inner & rule
        joint.check(self.matrix)
        return self._shaped(sweep.mass(self, joint))

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as `torch.diagonal` numbers them; `offset=-1` is the previous token.

        Takes as many dot products as the diagonal is long.
        """
        self._check_rows("diagonal")
        _, _, T, S = self.matrix
        first = max(0, -offset)
        length = max(0, min(T - first, S - offset - first))
        index = torch.arange(first, first + length, device=self.device)
        return self._shaped(sweep.entries(self, index, index + offset))

    def top(self, n: int) -> Top:
        """The n greatest weights of every row and the keys that they fall on, each (B, H, T, n)."""
        if not isinstance(n, int) or not 1 <= n <= max(self.matrix[3], 1):
            raise ValueError(f"n: expected a whole number from 1 to {self.matrix[3]}, got {n!r}")
        return Top(*(self._shaped(x) for x in sweep.top(self, n)))

    def apply(self, v: Tensor) -> Tensor:
        """The weights times values (B, G, S, E): what the attention gives for them. Shape (B, H, T, E)."""
        B, _, _, S = self.matrix
        G = self.k.shape[1]
        lead = self.axes._replace(rows=False).visible((B, G, 1))
        if not isinstance(v, Tensor) or tuple(v.shape[:-1]) != (*lead, S):
            came = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(f"v: expected ({', '.join(map(str, (*lead, S)))}, E), got {came}")
        v = v.detach().reshape(B, G, S, -1)
        with torch.no_grad():
            output, lse = attend(
                self.q.to(v.dtype),
                self.k.to(v.dtype),
                v,
                mask=self.mask,
                scale=self.scale,
                softcap=self.softcap,
                sinks=self.sinks,
                return_lse=True,
            )
        # The map's own lse has the last word: it is what every picture of the map is made from.
        ratio = (lse - sweep.anchored(self.lse)).exp_().unsqueeze(-1)
        return self._shaped((output * ratio).to(output.dtype))

    def verify(self, v: Tensor, output: Tensor, rows: int = 64) -> float:
        """The largest difference between the map's weights times v and an output, over evenly sampled rows.

        What the rows say of the output that a model really used: small means that the picture is the truth.
        """
        _, _, T, _ = self.matrix
        if tuple(output.shape[:-1]) != tuple(self.shape[:-1]):
            raise ValueError(f"output: expected {(*self.shape[:-1], 'E')}, got {tuple(output.shape)}")
        sampled = torch.linspace(0, T - 1, min(max(rows, 1), T), device=self.device).long()
        G, H = self.k.shape[1], self.q.shape[1]
        values = v.to(self.dtype).reshape(-1, G, self.matrix[3], v.shape[-1]).repeat_interleave(H // G, dim=1)
        given = output.to(self.dtype).reshape(-1, H, T, output.shape[-1])[:, :, sampled]
        bare = AttentionMap(self.q, self.k, self.lse, self.mask, self.scale, self.softcap, self.sinks)
        worst = 0.0
        for i in range(0, len(sampled), 16):
            computed = bare.tile(sampled[i : i + 16]) @ values
            worst = max(worst, float((computed - given[:, :, i : i + 16]).abs().max()))
        return worst

    def to(self, *args: Any, **kwargs: Any) -> AttentionMap:
        """The map on another device or with q and k in another dtype, as `Tensor.to` takes them."""
        q, k = self.q.to(*args, **kwargs), self.k.to(*args, **kwargs)
        lse = self.lse.to(device=q.device, dtype=working_dtype(q.dtype))
        sinks = None if self.sinks is None else self.sinks.to(q.device)
        return AttentionMap(q, k, lse, self.mask, self.scale, self.softcap, sinks, self.axes)

    def cpu(self) -> AttentionMap:
        return self.to("cpu")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a safetensors file, atomically; `regard.load(path)` opens it again."""
        from regard.maps.files import save

        save(self, path)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        def dense(x: Any) -> Any:
            if isinstance(x, AttentionMap):
                return x.dense()
            return type(x)(dense(y) for y in x) if type(x) in (list, tuple) else x

        return func(*dense(tuple(args)), **{name: dense(x) for name, x in (kwargs or {}).items()})


def _refuse_large(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(
            f"this would take {size / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB: "
            "look at .pool(256, 256), at one row map[b, h, i] or at a tile map[b, h, i0:i1, j0:j1] instead"
        )
