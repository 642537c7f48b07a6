"""`AttentionMap`: every weight of an attention, computed when someone looks.

It keeps q, k and the row log-sum-exp; any weight is exp(score(q_i, k_j) − lse_i), exactly. Memory grows with
T, not with T². This file knows how to index and describe a map; `sweep` and `overview` know how to sum it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from os import PathLike
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import answer_pytorch_arguments, check_whole_number
from regard.attention.attend import attend
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.attention.masks.views import Keys, Rows
from regard.maps import overview, precision, sweep
from regard.maps.index import Axes, heads_of, parse
from regard.maps.precision import Precise

NORMALISED = 1 << 21  # weights of whole rows that are divided by their rows' own sums, which costs time
FIRST = (
    64  # rows of a matrix that are in any case: under a causal mask they see few keys, each with much weight
)
DENSE_LIMIT = 1 << 30  # bytes that `.to_dense()` may take unless told otherwise
EXACT_NUMBERS = 1 << 18  # weights that are computed in float64 at a time: 2 MiB


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

    `lse` is the row log-sum-exp if it is known already, as from `attend(..., return_lse=True)`.

    >>> import torch, regard
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> map = regard.attention_map(x, x, mask=regard.causal)
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
    q = q.detach().reshape(shape.B, shape.H, shape.T, shape.D)
    k = k.detach().reshape(shape.B, shape.G, shape.S, shape.D)
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
    """Attention weights shaped (B, H, T, S), without the matrix. Made by `regard.attention_map` or a capture.

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
        precise: Precise | None = None,
    ) -> None:
        self.q = q  # (B, H, T, D)
        self.k = k  # (B, G, S, D)
        self.lse = lse  # (B, H, T)
        self.mask = mask
        self.scale = scale
        self.softcap = softcap
        self.sinks = sinks  # (H,), already counted in lse
        self.axes = axes  # which of batch, heads and rows are still there to index
        self._precise = precise  # None until someone looks at a weight

    def replaced(self, **fields: Any) -> AttentionMap:
        """The same map but for some of the constructor's arguments. What depends on them is yours to give."""
        names = ("q", "k", "lse", "mask", "scale", "softcap", "sinks", "axes")
        return AttentionMap(**{name: getattr(self, name) for name in names} | fields)

    @property
    def precise(self) -> Precise:
        """Which heads are computed in float64, since float32 would lose the digits of their scores."""
        if self._precise is None:
            self._precise = precision.precise_of(self)
        return self._precise

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
        """The dtype of the weights."""
        return torch.promote_types(working_dtype(self.q.dtype), self.lse.dtype)

    @property
    def result_dtype(self) -> torch.dtype:
        """The dtype that exponentials and sums are taken in; large scores are computed in a wider one."""
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
        settings = [str(self.mask)]
        if self.softcap is not None:
            settings.append(f"soft cap {self.softcap:g}")
        if self.sinks is not None:
            settings.append("sink logits")
        dtype = str(self.q.dtype).removeprefix("torch.")
        return f"AttentionMap({size}, {', '.join(settings)}, {dtype}, {kept})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        chosen = parse(index, self.axes, self.matrix)
        small = self.select(chosen.batch, chosen.heads, chosen.axes)
        if chosen.keys is None:
            return small.some_rows(chosen.rows) if isinstance(chosen.rows, slice) else small.tile(chosen.rows)
        tile = small.tile(chosen.rows, chosen.keys)
        return tile.squeeze(-1) if chosen.one_key else tile

    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> AttentionMap:
        """The map of some sequences and heads; `axes` are those that are left to index."""
        return self.replaced(
            q=self.q[batch, heads],
            k=heads_of(self.k[batch], heads, self.q.shape[1]),
            lse=self.lse[batch, heads],
            mask=self.mask.select(batch, heads),
            sinks=None if self.sinks is None else self.sinks[heads],
            axes=self.axes if axes is None else axes,
            precise=self.precise.select(batch, heads),
        )

    def some_rows(self, rows: slice) -> AttentionMap:
        """The map of some rows, which still stand where they stood among the keys."""
        T = self.matrix[2]
        start, stop, _ = rows.indices(T)
        if (start, stop) == (0, T):
            return self
        return self.replaced(
            q=self.q[:, :, rows],
            lse=self.lse[:, :, rows],
            mask=Rows(self.mask, start, T),
            precise=self.precise.of_rows(rows),
        )

    def _within(self, rows: slice, keys: slice) -> AttentionMap:
        """The map of some rows and some keys alone; its rows need not sum to 1."""
        some = self.some_rows(rows)
        S = self.matrix[3]
        if keys == slice(0, S):
            return some
        precision.complete(some, slice(None))  # while all the keys are here
        mask, k = Keys(some.mask, keys.start, S), self.k[:, :, keys]
        return some.replaced(k=k, mask=mask, precise=some.precise)

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        """The weights of some rows and some keys, computed now: one product and one exp."""
        at = grid(rows, keys, self.matrix, self.device)
        B, H = self.matrix[:2]
        _refuse_large(B * H * at.q.numel() * at.k.numel() * self.dtype.itemsize, DENSE_LIMIT)
        return self._shaped(
            *precision.each(self, lambda share: [share.map._weights(at.rows, at.cols)], at.rows)
        )

    def _weights(self, rows: slice | Tensor, keys: slice | Tensor) -> Tensor:
        s = self._scores(rows, keys, self.dtype)
        weights = s.sub_(sweep.anchored(self.lse[:, :, rows, None])).to(self.result_dtype).exp_()
        whole = isinstance(keys, slice) and keys == slice(0, self.matrix[3])
        if whole and weights.numel() <= NORMALISED:
            sweep.normalise_(self, weights, rows)
        return weights

    def _scores(self, rows: slice | Tensor, keys: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The masked scores of some rows and some keys, (B, H, rows, keys)."""
        at = grid(rows, keys, self.matrix, self.device)
        q = self.q[:, :, rows].to(dtype) * self.scale
        k = self.k[:, :, keys].to(dtype)  # (B, G, keys, D)
        (B, H, T, D), (_, G, S, _) = q.shape, k.shape
        # The heads that share a key/value head, one below another: its keys are read once.
        s = (q.reshape(B, G, H // max(G, 1) * T, D) @ k.mT).view(B, H, T, S)
        if self.softcap is not None:
            s.div_(self.softcap).tanh_().mul_(self.softcap)
        if (added := self.mask.score_bias(at)) is not None:
            s.add_(added.detach())
        return s.masked_fill_(~self.mask.allowed(at), -torch.inf)

    @torch.no_grad()
    def _exact_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Whole rows in float64 from their scores alone: weights (B, H, rows, S) and their lse (B, H, rows).

        The map's own lse has no part in them, so that it can be compared with what comes out.
        """
        B, H, _, S = self.matrix
        group = H // max(self.k.shape[1], 1)
        weights = self.q.new_empty(B, H, len(rows), S, dtype=torch.float64)
        lse = weights.new_empty(B, H, len(rows))
        # Few heads at a time, so that what is computed of them stays in the cache.
        step = max(1, EXACT_NUMBERS // max(1, group * len(rows) * S)) * group
        for b, h in product(range(B), range(0, H, max(step, 1))):
            batch, heads = slice(b, b + 1), slice(h, min(h + step, H))
            part = self.select(batch, heads)
            s = part._scores(rows, slice(0, S), torch.float64)
            sinks = None if part.sinks is None else part.sinks.double().view(-1, 1, 1)
            top = s.amax(-1, keepdim=True) if S else s.new_full((*s.shape[:-1], 1), -torch.inf)
            top = top if sinks is None else torch.maximum(top, sinks)
            anchor = top.clamp(min=torch.finfo(s.dtype).min)  # −inf − −inf would be NaN
            total = s.sub_(anchor).exp_().sum(-1, keepdim=True)
            total = total if sinks is None else total + (sinks - anchor).exp()
            torch.div(s, total.masked_fill(total == 0, 1.0), out=weights[batch, heads])
            lse[batch, heads] = (top + total.log()).squeeze(-1)
        return weights, lse

    def _lse_error(self, rows: Tensor) -> Tensor:
        """How far the map's lse is from that of its scores in float64, (B, H, rows); 0 if both are −inf."""
        given, exact = self.lse[:, :, rows].double(), self._exact_rows(rows)[1]
        return (given - exact).abs().masked_fill_(given == exact, 0.0)

    def precise_lse(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """The row log-sum-exp that the weights of some rows are computed with, (B, H, rows) in float64."""
        out = self.lse[:, :, rows].double()
        for share in precision.shares(self, rows):
            out[share.batch, share.heads] = share.map.lse[:, :, rows].double()
        return out

    def _shaped(self, x: Tensor) -> Tensor:
        """A result (B, H, T, …) without the axes that were indexed away."""
        return x.reshape((*self.axes.visible(x.shape[:3]), *x.shape[3:]))

    def to_dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix as a tensor; refused if it would take more than `limit` bytes."""
        B, H, T, S = self.matrix
        _refuse_large(B * H * T * S * self.dtype.itemsize, limit)
        out = self.q.new_zeros(B, H, T, S, dtype=self.dtype)
        for share in precision.shares(self):
            part = out[share.batch, share.heads]
            for patch in sweep.patches(share.map):
                part[patch.batch, patch.heads, patch.rows, patch.keys] = patch.logs.exp_()
            few = slice(0, max(NORMALISED // max(B * H * S, 1), FIRST))
            sweep.normalise_(share.map, part[:, :, few], few)
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
        >>> regard.attention_map(x, x, mask=regard.causal).pool(2, 2)
        tensor([[1.0000, 0.0000],
                [0.4892, 0.5108]])
        >>> regard.attention_map(x, x, mask=regard.causal).pool(2, 2, region=(slice(2, 4), slice(0, 2)))
        tensor([[0.2741, 0.2741],
                [0.2151, 0.2151]])
        """
        if reduce not in ("mass", "max", "both"):
            raise ValueError(f"reduce: expected 'mass', 'max' or 'both', got {reduce!r}")
        self._check_rows("pool")
        part = self if region is None else self._within(*overview.spans(region, self.matrix))
        found = precision.each(part, lambda share: overview.pool(share.map, rows, cols))
        both = overview.Overview(*map(self._shaped, found))
        return both if reduce == "both" else both.mass if reduce == "mass" else both.max

    def summary(self, rows: int, cols: int) -> overview.MapSummary:
        """Both overviews and all statistics: `.mass`, `.max`, `.entropy`, `.distance` and `.received`.

        What `pool(rows, cols, "both")` and `statistics()` give, on a CPU from one pass over the map.
        """
        self._check_rows("summary")
        found = overview.MapSummary(
            *precision.each(self, lambda share: overview.summary(share.map, rows, cols))
        )
        mass, most, entropy, distance = (self._shaped(x) for x in found[:4])
        return overview.MapSummary(mass, most, entropy, distance, self._shaped_keys(found.received))

    def _check_rows(self, what: str) -> None:
        if not self.axes.rows:
            raise ValueError(
                f"{what}: expected a map with rows, got one row: index a slice, map[b, h, i:i+1]"
            )

    def statistics(self) -> sweep.RowStatistics:
        """Entropy and distance of every row and what every key receives, from one pass over the map."""
        entropy, distance, received = precision.each(self, lambda share: overview.statistics(share.map))
        return sweep.RowStatistics(self._shaped(entropy), self._shaped(distance), self._shaped_keys(received))

    def entropy(self) -> Tensor:
        """−Σ A ln A of every row, in nats: 0 looks at one key, ln n at n keys alike. Shape (B, H, T)."""
        return self.statistics().entropy

    def distance(self) -> Tensor:
        """How far back every row looks: Σ A · (position of the query − key). Shape (B, H, T)."""
        return self.statistics().distance

    def received(self) -> Tensor:
        """The attention that each key gets, summed over the queries. Shape (B, H, S)."""
        return self.statistics().received

    def _shaped_keys(self, x: Tensor) -> Tensor:
        B, H = x.shape[:2]
        return x.reshape((*self.axes._replace(rows=False).visible((B, H, 1)), *x.shape[2:]))

    def mass(self, rule: Mask) -> Tensor:
        """The share of every row that falls under a mask rule, such as `window(8)` or `prefix(1)`. (B, H, T).

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
        (mass,) = precision.each(
            self, lambda share: [sweep.mass(share.map, joint.select(share.batch, share.heads))]
        )
        return self._shaped(mass)

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as `torch.diagonal` numbers them; `offset=-1` is the previous token.

        Takes as many dot products as the diagonal is long.
        """
        self._check_rows("diagonal")
        _, _, T, S = self.matrix
        first = max(0, -offset)
        length = max(0, min(T - first, S - offset - first))
        index = torch.arange(first, first + length, device=self.device)
        rows = slice(first, first + length)
        return self._shaped(
            *precision.each(self, lambda share: [sweep.entries(share.map, index, index + offset)], rows)
        )

    def top(self, n: int) -> Top:
        """The n greatest weights of every row and the keys that they fall on, each (B, H, T, n)."""
        n = check_whole_number("n", n, 1, max(self.matrix[3], 1))
        return Top(*map(self._shaped, precision.each(self, lambda share: sweep.top(share.map, n))))

    def apply(self, v: Tensor) -> Tensor:
        """The weights times values (B, G, S, E): what the attention gives for them. Shape (B, H, T, E)."""
        B, _, _, S = self.matrix
        G = self.k.shape[1]
        lead = self.axes._replace(rows=False).visible((B, G, 1))
        if not isinstance(v, Tensor) or tuple(v.shape[:-1]) != (*lead, S):
            came = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(f"v: expected ({', '.join(map(str, (*lead, S)))}, E), got {came}")
        v = v.detach().reshape(B, G, S, v.shape[-1])
        H, T = self.matrix[1:3]
        output = v.new_empty(B, H, T, v.shape[-1])
        for share in precision.shares(self):
            values = heads_of(v[share.batch], share.heads, H)
            output[share.batch, share.heads] = share.map._mixed(values)
        return self._shaped(output)

    @torch.no_grad()
    def _mixed(self, v: Tensor) -> Tensor:
        """The weights times values (B, G, S, E), in a dtype that loses nothing of q, k or v."""
        wide = self.lse.dtype if self.lse.dtype == torch.float64 else self.q.dtype
        dtype = torch.promote_types(wide, v.dtype)
        output, lse = attend(
            self.q.to(dtype),
            self.k.to(dtype),
            v.to(dtype),
            mask=self.mask,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            return_lse=True,
        )
        # The map's own lse has the last word: it is what every picture of the map is made from.
        return output * (lse - sweep.anchored(self.lse)).exp_().unsqueeze(-1)

    def verify(self, v: Tensor, output: Tensor, rows: int = 64) -> float:
        """The largest difference between the map's weights times v and an output, over evenly sampled rows.

        What the rows say of the output that a model really used: small means that the picture is the truth.
        """
        _, _, T, _ = self.matrix
        if tuple(output.shape[:-1]) != tuple(self.shape[:-1]):
            raise ValueError(f"output: expected {(*self.shape[:-1], 'E')}, got {tuple(output.shape)}")
        sampled = torch.linspace(0, T - 1, min(max(rows, 1), T), device=self.device).long()
        (B, H, _, S), G = self.matrix, self.k.shape[1]
        values = v.to(self.dtype).reshape(B, G, S, v.shape[-1]).repeat_interleave(H // max(G, 1), dim=1)
        given = output.to(self.dtype).reshape(B, H, T, output.shape[-1])[:, :, sampled]
        bare = self.replaced(axes=Axes(), precise=self.precise)
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
        same = torch.promote_types(q.dtype, self.q.dtype) == q.dtype  # not one number of q and k has changed
        precise = self.precise.to(q.device) if same else None
        return self.replaced(q=q, k=k, lse=lse, sinks=sinks, precise=precise)

    def cpu(self) -> AttentionMap:
        return self.to("cpu")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a safetensors file, atomically; `regard.load(path)` opens it again."""
        from regard.maps.storage import save

        save(self, path)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.to_dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        def dense(x: Any) -> Any:
            if isinstance(x, AttentionMap):
                return x.to_dense()
            return type(x)(dense(y) for y in x) if type(x) in (list, tuple) else x

        return func(*dense(tuple(args)), **{name: dense(x) for name, x in (kwargs or {}).items()})


def _refuse_large(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(
            f"this would take {size / 2**30:.1f} GiB, over the limit of {limit / 2**30:.1f} GiB: "
            "look at .pool(256, 256), at one row map[b, h, i] or at a tile map[b, h, i0:i1, j0:j1] instead"
        )
