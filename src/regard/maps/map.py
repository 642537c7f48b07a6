"""`AttentionMap`: the attention weights of a layer, computed on demand.

A map keeps q, k and the row log-sum-exp; any weight is exp(score(q_i, k_j) − lse_i), exactly. Memory grows
with T, not with T². This file is the API: it checks arguments, gives results their shape, and knows neither
tokens nor models. The fields are in `data.py`; `reductions.py` computes, and what it calls.
"""

from __future__ import annotations

from os import PathLike
from typing import Self

import torch
from torch import Tensor

from regard.attention.arguments import answer_pytorch_arguments, check_whole_number
from regard.attention.attend import attend
from regard.attention.backends.tiles import find_visibility
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Blocks
from regard.attention.tensors import check_floats, check_tensor
from regard.maps import storage
from regard.maps.data import MapData
from regard.maps.index import Axes
from regard.maps.lazy_matrix import DENSE_LIMIT, LazyMatrix, refuse_large
from regard.maps.signed_map import DifferenceMap, TopK
from regard.maps.spans import as_bounds
from regard.maps.tile_passes import kept_overview, overview, precision, reductions, sweep
from regard.maps.tile_passes.dense_rows import NORMALISED
from regard.maps.weighted_map import WeightedMap

LSE_ROWS = 64  # rows whose visibility is asked for at once
MIN_NORMALISED_ROWS = 64  # first rows of a matrix: under a causal mask they have few keys with large weights


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
    row log-sum-exp if it is known already: from `attend(..., return_lse=True)`, FlashAttention's
    `softmax_lse`, FlexAttention's or cuDNN's. `regard.certify` says whether it belongs to an output.

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
        lse = _read_lse(lse, q, rule, shape.matrix)
    axes = Axes(batch=q.ndim == 4, heads=q.ndim >= 3)
    q = q.detach().reshape(shape.B, shape.H, shape.T, shape.D)
    k = k.detach().reshape(shape.B, shape.G, shape.S, shape.D)
    sinks = None if sinks is None else sinks.detach()
    with torch.no_grad():
        if lse is None:
            lse = attend(q, k, k, mask=rule, scale=scale, softcap=softcap, sinks=sinks, return_lse=True)[1]
    # An lse in float64 would make every weight float64, see MapData.dtype.
    lse = lse.detach().reshape(q.shape[:-1]).to(working_dtype(q.dtype))
    return AttentionMap(q=q, k=k, lse=lse, mask=rule, scale=scale, softcap=softcap, sinks=sinks, axes=axes)


class AttentionMap(MapData, LazyMatrix):
    """Attention weights shaped (B, H, T, S), without the matrix. Made by `regard.attention_map` or a capture.

    A map is indexed like a tensor. Naming heads or a slice of rows gives a smaller map; naming one row, a
    list of rows, or any keys gives a tensor. `m @ values` is the fused product. Any other torch function
    takes a map as its dense tensor.

    Its fields are `q` (B, H, T, D), `k` (B, G, S, D) and the row log-sum-exp `lse` (B, H, T); `mask`,
    `scale`, `softcap` and the sink logits `sinks` (H,); `axes`, which says whether the batch and head axes
    are left to index; `precise`, the heads that are computed in float64, found on first use; and `kept`, the
    overview that a capture with `overviews=True` has computed with the attention, from which `pool` answers.
    """

    signed = False

    @property
    def nbytes(self) -> int:
        """Bytes of q, k and lse, and of the overview that is kept with them."""
        return sum(x.nbytes for x in (self.q, self.k, self.lse, self.kept) if x is not None)

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

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        """The weights of some rows and some keys, each a slice or a tensor of indices: (B, H, rows, keys)."""
        return self._shaped(reductions.tile(self, rows, keys))

    def visible_blocks(self, blocks: Blocks) -> Tensor:
        """Which of the blocks may hold a weight that is not 0, (R, C)."""
        return find_visibility(self.mask, blocks)[0]

    def precise_lse(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """The row log-sum-exp that the weights of some rows are computed with, (B, H, rows) in float64."""
        return precision.precise_lse(self, rows)

    def to_dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        B, H, T, S = self.matrix
        refuse_large(B * H * T * S * self.dtype.itemsize, limit)
        dense = self.q.new_zeros(B, H, T, S, dtype=self.dtype)
        for group in precision.head_groups(self):
            part = dense[group.batch, group.heads]
            overview.fill_dense(group.data, part)
            few = slice(0, max(NORMALISED // max(B * H * S, 1), MIN_NORMALISED_ROWS))
            sweep.normalise_rows_(group.data, part[:, :, few], few)
        return self._shaped(dense)

    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> overview.Overview:
        return overview.Overview(*map(self._shaped, reductions.pool(self, rows, cols)))

    def with_overview(self) -> Self:
        """The map with an overview that is kept, from which coarser ones follow without computing.

        Its cells are squares of a power of two of tokens, 128 at least, at most 256 × 256 of them. A map of
        fewer than 4,096 queries is returned as it is: its overviews take no time.
        """
        _, _, T, S = self.matrix
        if self.kept is not None or T < kept_overview.MIN_QUERIES:
            return self
        size = kept_overview.cell_size(T, S)
        rows, cols = (as_bounds("cells", [*range(0, n, size), n], 0, n) for n in (T, S))
        kept = kept_overview.KeptOverview(size, *reductions.pool(self, rows, cols))
        return self._with(axes=self.axes, precise=self.precise, kept=kept)

    def summary(self, rows: int, cols: int) -> overview.MapSummary:
        """Both overviews and all statistics: `.mass` and `.max`, and `.entropy` and the others.

        They are those of `pool(rows, cols, "both")`, for counts, and `statistics()`, on a CPU from one pass
        over the map.
        """
        bounds = self._equal_bounds(rows, cols)
        results = precision.compute(self, lambda group: overview.summary(group.data, *bounds))
        return overview.MapSummary(*map(self._shaped, results))

    def statistics(self) -> sweep.RowStatistics:
        """`.entropy`, `.distance` and `.max_score` of every row and what every key has `.received`.

        All of them come from one pass over the map.
        """
        results = precision.compute(self, lambda group: overview.statistics(group.data))
        return sweep.RowStatistics(*map(self._shaped, results))

    def entropy(self) -> Tensor:
        """−Σ A ln A of every row, in nats, (B, H, T): 0 for one key, ln n for uniform attention to n keys."""
        return self._row_statistics()[0]

    def distance(self) -> Tensor:
        """The mean distance of every row, Σ A · (position of the query − key), (B, H, T)."""
        return self._row_statistics()[1]

    def max_score(self) -> Tensor:
        """The largest score of every row, as the softmax takes it, (B, H, T); −inf where no key is visible.

        It is scaled, capped and biased, and of visible keys only. A sink logit is not a score.

        >>> import torch, regard
        >>> q, k = torch.tensor([[2.0], [3.0]]), torch.tensor([[5.0], [-1.0]])
        >>> regard.attention_map(q, k, mask=regard.causal).max_score()
        tensor([10., 15.])
        """
        return self.statistics().max_score

    def _row_statistics(self) -> list[Tensor]:
        results = precision.compute(self, lambda group: overview.row_statistics(group.data))
        return list(map(self._shaped, results))

    def received(self, weights: Tensor | None = None) -> Tensor:
        """The attention that each key receives, summed over the queries, (B, H, S).

        `weights` w (B, H, T), or a shape that broadcasts to it, multiply the rows first: the result is wᵀA,
        which is what attention rollout takes a step with. Rows whose weight is 0 are not computed.

        >>> import torch, regard
        >>> x = torch.zeros(4, 2)
        >>> regard.attention_map(x, x, mask=regard.causal).received(torch.tensor([0.0, 1.0, 0.0, -1.0]))
        tensor([ 0.2500,  0.2500, -0.2500, -0.2500])
        """
        if weights is None:
            (total,) = precision.compute(self, lambda group: [overview.received_from_all(group.data)])
            return self._shaped(total)
        return self._shaped(reductions.received(self, self._expand("weights", weights, self.matrix[2])))

    def weighted(self, u: Tensor) -> WeightedMap:
        """The map with the weights of every key j multiplied by u_j: a `WeightedMap` with entries A_ij · u_j.

        u is signed and broadcasts to (B, H, S). Nothing is computed until you ask for it.

        >>> import torch, regard
        >>> x = torch.zeros(4, 2)
        >>> regard.attention_map(x, x, mask=regard.causal).weighted(torch.tensor([1.0, -1.0, 2.0, 0.0]))[3]
        tensor([ 0.2500, -0.2500,  0.5000,  0.0000])
        """
        return WeightedMap(self, self._expand("u", u, self.matrix[3]))

    def __sub__(self, other: object) -> DifferenceMap:
        """The difference of two maps of one shape, computed on demand."""
        return DifferenceMap(self, other) if isinstance(other, LazyMatrix) else NotImplemented

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
        return self._shaped(reductions.mass(self, joint))

    def diagonal(self, offset: int = 0) -> Tensor:
        """The weights A[i, i + offset], as `torch.diagonal` numbers them; `offset=-1` is the previous token.

        This takes as many dot products as the diagonal is long.
        """
        return self._shaped(reductions.diagonal(self, offset))

    def topk(self, k: int) -> TopK:
        """The k largest weights of every row as `(values, indices)`, each (B, H, T, k).

        As in `torch.topk` along the keys, but an index is −1 where a row has fewer than k visible keys.
        """
        k = check_whole_number("k", k, 1, max(self.matrix[3], 1))
        return TopK(*map(self._shaped, precision.compute(self, lambda group: overview.topk(group.data, k))))

    def __matmul__(self, v: Tensor) -> Tensor:
        """The weights times values v (B, G, S, E), by fused attention: the output (B, H, T, E).

        v has a head for each key/value head or for each query head; leading dimensions broadcast as in
        `torch.matmul`. Gradients flow to v.

        >>> import torch, regard
        >>> x, v = torch.zeros(4, 2), torch.arange(4.0)[:, None]
        >>> (regard.attention_map(x, x, mask=regard.causal) @ v).flatten()
        tensor([0.0000, 0.5000, 1.0000, 1.5000])
        """
        return self._shaped(reductions.multiply(self, self._head_values(v)))

    @property
    def _key_heads(self) -> int:
        return self.k.shape[1]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a safetensors file, atomically; `regard.load(path)` opens it again."""
        storage.save(self, path)


def _read_lse(lse: Tensor, q: Tensor, mask: Mask, matrix: tuple[int, int, int, int]) -> Tensor:
    """The lse (B, H, T) of queries q (…, T, D) under a mask; an error says how to mend its shape.

    FlashAttention, FlexAttention, cuDNN and PyTorch's kernels all give the natural logarithm, in shapes of
    their own.
    """
    lse = _lse_shaped(check_floats("lse", lse), tuple(q.shape[:-1]))
    if lse.device != q.device:
        raise ValueError(f"lse: expected it on {q.device}, where q is, got {lse.device}")
    return _with_empty_rows(lse.detach().reshape(matrix[:3]), mask, matrix)


def _lse_shaped(lse: Tensor, expected: tuple[int, ...]) -> Tensor:
    """The lse in the shape that is expected; cuDNN's has a last dimension of one."""
    got, hint = tuple(lse.shape), ""
    if got == (*expected, 1):
        return lse.squeeze(-1)
    if got == expected:
        return lse
    # PyTorch's memory-efficient kernel pads the rows of its lse to a multiple of 32.
    if got[:-1] == expected[:-1] and got[-1] > expected[-1]:
        hint = f": pass lse[..., :{expected[-1]}] if the kernel has padded its rows"
    elif len(got) > 1 and tuple(lse.mT.shape) == expected:
        hint = ": pass lse.mT"
    raise ValueError(f"lse: expected {expected}, one number a query, got {got}{hint}")


def _with_empty_rows(lse: Tensor, mask: Mask, matrix: tuple[int, int, int, int]) -> Tensor:
    """The lse with −inf in the rows that see no key, where kernels write +inf or 0."""
    # 0 may also be the true lse of a row: the mask is asked about each such row.
    doubtful = ((lse == torch.inf) | (lse == 0)).flatten(0, 1).any(0).nonzero().flatten()
    if not mask.hides or not len(doubtful):
        return lse
    # The lse is the caller's tensor.
    lse = lse.clone()
    for rows in torch.split(doubtful, LSE_ROWS):
        visible = mask.tile(rows, slice(0, matrix[3]), matrix, device=lse.device).any(-1)
        visible = visible.expand(*matrix[:2], len(rows))
        lse[:, :, rows] = lse[:, :, rows].masked_fill(~visible, -torch.inf)
    return lse
