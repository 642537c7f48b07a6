"""`LinearAttentionMap`: the map of a linear-attention or state-space layer, with entries of either sign.

Such a layer has no softmax. Its output is still a weighted sum of values, o_t = Σ_s W_ts v_s, and W follows
from what the layer's recurrence is made of: queries, keys, decays and write strengths. That is all a map
keeps, so its memory grows with T; `recurrence.py` computes. This file is the API; it knows no models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from regard.attention.backends.runs import join_runs
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Blocks
from regard.attention.masks.named_masks import causal
from regard.maps import storage
from regard.maps.index import Axes, diagonal_spans, select_kv_heads
from regard.maps.lazy_matrix import DENSE_LIMIT, refuse_large
from regard.maps.recurrence import ChunkedRecurrence, KeyBlock, RecurrenceInputs
from regard.maps.signed_map import SignedMap, SignedTile
from regard.maps.spans import number_members
from regard.maps.tile_passes.bins import Bins
from regard.maps.tile_passes.overview import MapSummary, Overview
from regard.maps.tile_passes.sweep import RowStatistics

NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 29}  # of a tensor (heads, T, width) that are computed at a time
STRIP_NUMBERS = {"cpu": 1 << 23, "cuda": 1 << 27}  # entries of whole rows that are computed at a time
NEAR_DIAGONALS = 64  # diagonals up to this far from the main one are computed token by token


class AbsoluteStatistics(NamedTuple):
    """Of the magnitudes of every row: their sum, and the entropy and mean distance of their shares."""

    total: Tensor  # (B, H, T)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)


class LinearAttentionMap(SignedMap):
    """The weights (B, H, T, S) of a linear-attention or state-space layer, without the matrix.

    Made by `regard.maps.linear_attention_map` or a capture. It is indexed, pooled and multiplied as an
    `AttentionMap` is; entries have either sign and rows need not sum to 1. `m @ v`, `received` and pooling by
    mass take time that grows with T, and one row takes T·D.

    Its fields are `q` and `k` (B, G, S, D), `decay` (B, H, S) or (B, H, S, D), `beta` (B, H, S), `skip` (H,),
    `delta_rule`, `scale` and `qk_norm`, as in `linear_attention_map`; `rows`, the positions of its rows; and
    `axes`, which says whether the batch and head axes are left to index.
    """

    mask: Mask = causal
    softcap: float | None = None
    sinks: Tensor | None = None
    TOKEN_FIELDS: ClassVar = ("q", "k", "decay", "beta")
    """The tensors with an entry for each sequence and, at their third axis, for each token."""
    KEY_FIELDS: ClassVar = ("q", "k")
    """Those of them that have the key heads."""

    def __init__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        decay: Tensor,
        beta: Tensor,
        skip: Tensor | None = None,
        delta_rule: bool = False,
        scale: float = 1.0,
        qk_norm: float | None = None,
        rows: range | None = None,
        axes: Axes = Axes(),  # noqa: B008 (immutable)
    ) -> None:
        self.q, self.k, self.decay, self.beta, self.skip = q, k, decay, beta, skip
        self.delta_rule, self.scale, self.qk_norm = delta_rule, scale, qk_norm
        self.rows = range(k.shape[2]) if rows is None else rows
        self.axes = axes

    def _with(self, **fields: Any) -> Self:
        return type(self)(**vars(self) | fields)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that it is made of, by their fields."""
        tensors = {"q": self.q, "k": self.k, "decay": self.decay, "beta": self.beta}
        return tensors if self.skip is None else tensors | {"skip": self.skip}

    def _with_tokens(self, tensors: Mapping[str, Tensor], mask: Mask) -> Self:
        """The map with other tokens: their `TOKEN_FIELDS`. Its mask stays causal, and it has all rows."""
        return self._with(**tensors, rows=None)

    def _stored(self) -> storage.StoredMap:
        options = {
            "delta_rule": self.delta_rule,
            "scale": self.scale,
            "qk_norm": self.qk_norm,
            "rows": [self.rows.start, self.rows.stop],
            "axes": list(self.axes),
        }
        return storage.StoredMap(storage.LINEAR_FORMAT, self.tensors(), options)

    @property
    def kind(self) -> str:
        """The recurrence in words: "gated delta rule", "linear attention with decay"."""
        if not self.delta_rule:
            name = "linear attention with decay" if self.has_decay else "linear attention"
        else:
            name = "gated delta rule" if self.has_decay else "delta rule"
        return f"{name} of each channel" if self.decay.ndim == 4 else name

    @property
    def has_decay(self) -> bool:
        """Whether the state decays."""
        return bool((self.decay != 0).any())

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(x.nbytes for x in self.tensors().values())

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.shape)
        return f"LinearAttentionMap({size}, {self.kind}, {str(self.q.dtype).removeprefix('torch.')})"

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        B, H, S = self.beta.shape
        return B, H, len(self.rows), S

    @property
    def first_position(self) -> int:
        """The position of the first query among the keys."""
        return self.rows.start

    @property
    def dtype(self) -> torch.dtype:
        return working_dtype(self.q.dtype)

    @property
    def device(self) -> torch.device:
        return self.q.device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The map on another device or with its tensors in another dtype; takes the arguments of `Tensor.to`.

        Decays and write strengths are never stored in half precision.
        """
        q, k = self.q.to(*args, **kwargs), self.k.to(*args, **kwargs)
        others = {
            name: None if x is None else x.to(q.device, torch.promote_types(working_dtype(q.dtype), x.dtype))
            for name, x in (("decay", self.decay), ("beta", self.beta), ("skip", self.skip))
        }
        return self._with(q=q, k=k, **others)

    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> Self:
        H = self.matrix[1]
        start, stop, _ = heads.indices(H)
        heads = slice(start, stop)
        return self._with(
            q=select_kv_heads(self.q[batch], heads, H),
            k=select_kv_heads(self.k[batch], heads, H),
            decay=self.decay[batch, heads],
            beta=self.beta[batch, heads],
            skip=None if self.skip is None else self.skip[heads],
            axes=self.axes if axes is None else axes,
        )

    def select_rows(self, rows: slice) -> Self:
        """Select a run of rows, which keep their positions among the keys."""
        return self._with(rows=self.rows[rows])

    def inputs(self, dtype: torch.dtype | None = None) -> RecurrenceInputs:
        """What the recurrence is made of, to be computed in the map's dtype or another one."""
        return RecurrenceInputs(
            self.q,
            self.k,
            self.decay,
            self.beta,
            self.skip,
            self.delta_rule,
            self.scale,
            self.qk_norm,
            dtype or self.dtype,
        )

    @torch.no_grad()
    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        B, H, T, S = self.matrix
        row_index, key_index = _as_index(rows, T).cpu(), _as_index(keys, S).cpu()
        refuse_large(B * H * len(row_index) * len(key_index) * self.dtype.itemsize, DENSE_LIMIT)
        entries = torch.zeros(B, H, len(row_index), len(key_index), dtype=self.dtype, device=self.device)
        if not entries.numel():
            return self._shaped(entries)
        at, order = torch.unique(row_index + self.rows.start, return_inverse=True)  # sorted, each once
        first, last = int(key_index.min()), int(key_index.max())
        order, key_index = order.to(self.device), key_index.to(self.device)
        for part, heads in self._head_groups():
            recurrence = ChunkedRecurrence(part.inputs(), int(at[-1]) + 1)
            strip = entries.new_zeros(B, part.matrix[1], len(at), last + 1 - first)
            for block in recurrence.back(at, first=first):
                start, stop = max(block.keys.start, first), min(block.keys.stop, last + 1)
                if start < stop:
                    inside = slice(start - block.keys.start, stop - block.keys.start)
                    strip[:, :, block.rows, start - first : stop - first] = block.entries[..., inside]
            entries[:, heads] = strip[:, :, order][..., key_index - first]
        return self._shaped(entries)

    def _head_groups(self) -> Iterator[tuple[Self, slice]]:
        """The map in groups of heads of which so much is computed at a time, and which heads they are."""
        B, H, _, S = self.matrix
        most = NUMBERS["cuda" if self.device.type == "cuda" else "cpu"]
        step = max(1, most // max(1, B * S * max(self.k.shape[-1], 64)))
        for first in range(0, H, step):
            heads = slice(first, min(first + step, H))
            yield self.select(slice(None), heads, Axes()), heads

    def visible_blocks(self, blocks: Blocks) -> Tensor:
        after = self.rows.start + blocks.T - blocks.S  # blocks count the last rows as those of the last keys
        return blocks.q_last + after >= blocks.k_first

    def _tiles(self, q_bins: Bins, k_bins: Bins) -> Iterator[SignedTile]:
        """Every tile between the sides of two bins, from whole rows: going back passes all keys."""
        if not math.prod(self.shape):
            return
        for q in q_bins.sides:
            strip = self.tile(q_bins.places[q.places])  # (…, rows, S)
            for k in k_bins.sides:
                yield SignedTile(q, k, strip[..., k_bins.places[k.places]])

    def _side(self) -> int:
        """The length of a tile's sides: so many whole rows of all heads are computed at a time."""
        B, H, _, S = self.matrix
        most = STRIP_NUMBERS["cuda" if self.device.type == "cuda" else "cpu"]
        return max(16, min(512, most // max(1, B * H * S)))

    @torch.no_grad()
    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> Overview:
        B, H = self.matrix[:2]
        shape = (B, H, rows.shape[1], cols.shape[1])
        if not math.prod(shape):
            empty = torch.zeros(shape, dtype=self.dtype, device=self.device)
            return Overview(self._shaped(empty), self._shaped(empty))
        mass = self._shaped(self._pool_mass(rows, cols))
        if reduce == "mass":
            return Overview(mass, torch.zeros_like(mass))
        return Overview(mass, super()._pool(rows, cols, reduce).max)

    def _pool_mass(self, rows: Tensor, cols: Tensor) -> Tensor:
        """The mean row mass of every cell: the map times values that mark the keys of each span."""
        S = self.matrix[3]
        marks = torch.zeros(S, cols.shape[1], dtype=self.dtype, device=self.device)
        owner, places = _owners(cols)
        marks[places, owner] = 1.0
        by_row = self._multiply(marks.expand(*self.matrix[:2], -1, -1), int(rows[1, -1]))  # (B, H, T, cols)
        owner, places = _owners(rows)
        picked = by_row[:, :, places].movedim(2, 0)
        cells = join_runs(picked, owner.to(self.device), rows.shape[1], "sum").movedim(0, 2)
        return cells / (rows[1] - rows[0]).to(self.device)[:, None]

    def _sweep(self) -> Iterator[tuple[slice, KeyBlock]]:
        """All entries of all rows, as heads and a block of keys at a time."""
        at = torch.arange(self.rows.start, self.rows.stop, device="cpu")
        for part, heads in self._head_groups() if len(at) else ():
            for block in ChunkedRecurrence(part.inputs(), self.rows.stop).back(at):
                yield heads, block

    @torch.no_grad()
    def magnitudes(self) -> AbsoluteStatistics:
        """What the magnitudes of every row say: their sum; the entropy and distance of their shares."""
        B, H, T, _ = self.matrix
        total, logs, apart = torch.zeros(3, B, H, T, dtype=self.dtype, device=self.device)
        position = torch.arange(self.rows.start, self.rows.stop, device="cpu").to(total)
        for heads, block in self._sweep():
            size = block.entries.abs()
            in_block = size.sum(-1)
            to_end = torch.arange(block.keys.stop - block.keys.start, 0, -1, device="cpu").to(size)
            total[:, heads, block.rows] += in_block
            logs[:, heads, block.rows] += torch.special.entr(size).sum(-1)
            apart[:, heads, block.rows] += size @ to_end
            apart[:, heads, block.rows] += in_block * (position[block.rows] - block.keys.stop)
        # With shares |W| / Σ|W|, the entropy is ln Σ|W| − Σ |W| ln |W| / Σ|W|.
        known = total.clamp(min=torch.finfo(self.dtype).tiny)
        entropy = (known.log() + logs / known).where(total > 0, 0.0).clamp(min=0.0)
        distance = (apart / known).where(total > 0, 0.0)
        return AbsoluteStatistics(*map(self._shaped, (total, entropy, distance)))

    def statistics(self) -> RowStatistics:
        """`.entropy` and `.distance` of the magnitudes of every row, and the sum `.received` of every column.

        Shares are |W| divided by their sum over the row. `.max_score` is NaN: there is no softmax.
        """
        _, entropy, distance = self.magnitudes()
        return RowStatistics(entropy, distance, self.received(), torch.full_like(entropy, torch.nan))

    def entropy(self) -> Tensor:
        """−Σ a ln a of every row, in nats, (B, H, T), for the shares a = |W| / Σ|W|."""
        return self.magnitudes().entropy

    def distance(self) -> Tensor:
        """The mean distance of every row, Σ a · (position of the query − key), for the same shares."""
        return self.magnitudes().distance

    def summary(self, rows: int, cols: int) -> MapSummary:
        """Both overviews and all statistics: `.mass`, `.max`, `.entropy`, `.distance` and `.received`.

        They are those of `pool(rows, cols, "both")`, for counts `rows` and `cols`, and `statistics()`.
        """
        return MapSummary(*self._pool(*self._equal_bounds(rows, cols), "both"), *self.statistics())

    @torch.no_grad()
    def _received(self, row_weights: Tensor) -> Tensor:
        B, H, T, S = self.matrix
        total = torch.zeros(B, H, S, dtype=self.dtype, device=self.device)
        if not total.numel() or not T:
            return self._shaped(total)
        rows = total.new_zeros(B, H, self.rows.stop)
        rows[:, :, self.rows.start :] = row_weights.reshape(B, H, T)
        for part, heads in self._head_groups():
            recurrence = ChunkedRecurrence(part.inputs(), self.rows.stop)
            total[:, heads, : self.rows.stop] = recurrence.received(rows[:, heads])
        return self._shaped(total)

    def __matmul__(self, v: Tensor) -> Tensor:
        """The entries times values v (B, H, S, E), by the layer's recurrence: (B, H, T, E).

        Leading dimensions of v broadcast. Gradients flow to v.
        """
        values = self._head_values(v)
        H = self.matrix[1]
        values = values if values.shape[1] == H else values.repeat_interleave(H // values.shape[1], 1)
        return self._shaped(self._multiply(values).to(v.dtype))

    def _multiply(self, v: Tensor, stop: int | None = None) -> Tensor:
        """The entries times v (B, H, S, E), (B, H, rows, E), of the rows before `stop`."""
        rows = self.rows if stop is None else self.rows[:stop]
        if not v.numel() or not rows:
            return v.new_zeros(*self.matrix[:2], len(rows), v.shape[-1])
        parts = [
            ChunkedRecurrence(part.inputs(), rows.stop).multiply(v[:, heads].to(self.dtype))
            for part, heads in self._head_groups()
        ]
        return torch.cat(parts, 1)[:, :, rows.start :]

    @property
    def _key_heads(self) -> int:
        return self.k.shape[1]

    @torch.no_grad()
    def diagonal(self, offset: int = 0) -> Tensor:
        _, _, T, S = self.matrix
        rows, _ = diagonal_spans(offset, T, S)
        back = self.rows.start - offset  # by how much a key comes before its query
        if back > NEAR_DIAGONALS:
            return super().diagonal(offset)
        entries = torch.zeros(*self.matrix[:2], rows.stop - rows.start, dtype=self.dtype, device=self.device)
        if back < 0 or not entries.numel():
            return self._shaped(entries)
        for part, heads in self._head_groups():
            inputs = part.inputs()
            everything = slice(0, S)
            decay, beta, (keys, norms) = (
                inputs.decays(everything),
                inputs.betas(everything),
                inputs.keys(everything),
            )
            k = keys * norms
            at = torch.arange(rows.start, rows.stop, device=self.device) + self.rows.start
            u = inputs.queries(at)
            for step in range(back):
                s = at - step
                if self.delta_rule:
                    u = u - k[:, :, s] * ((k[:, :, s] * u).sum(-1, keepdim=True) * beta[:, :, s])
                u = u * decay[:, :, s].exp()
            entries[:, heads] = (k[:, :, at - back] * u).sum(-1) * beta[:, :, at - back, 0]
            if part.skip is not None and not back:
                entries[:, heads] += part.skip[:, None].to(self.dtype)
        return self._shaped(entries)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the map to a safetensors file, atomically; `regard.load(path)` opens it again."""
        storage.save(self, path)


def _as_index(index: slice | Tensor, size: int) -> Tensor:
    return torch.arange(*index.indices(size), device="cpu") if isinstance(index, slice) else index


def _owners(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """For spans between bounds (2, n), the span of each place and its position."""
    starts, stops = bounds.cpu()
    owner, number = number_members(stops - starts)
    return owner, starts[owner] + number
