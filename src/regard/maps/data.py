"""`MapData`: the fields of an attention map, what follows from their shapes, and the selection of a part.

All files of `maps` that compute something (`sweep`, `head_pass`, `overview`, `precision`, `dense_rows`,
`product`) take a `MapData`. The public class on top of it is `AttentionMap` in `map.py`, which
they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.description import describe_mask
from regard.attention.masks.views import Keys, Rows
from regard.maps.index import Axes, select_kv_heads
from regard.maps.storage import FORMAT, KEPT, StoredMap
from regard.maps.tile_passes.kept_overview import KeptOverview
from regard.maps.tile_passes.large_heads import PreciseHeads, find_large_heads, no_large_heads, score_size


class MapData:
    """Queries, keys, row log-sum-exp and the options of one attention.

    `q` is (B, H, T, D), `k` (B, G, S, D) and `lse` (B, H, T); `sinks` (H,) are sink logits, which lse already
    counts. `axes` says which of the batch and head axes are left to index. `precise`, unless given, is found
    when a weight is first computed. `kept` is an overview of the map, if one was computed with its attention.
    """

    TOKEN_FIELDS: ClassVar = ("q", "k", "lse")
    """The tensors with an entry for each sequence and, at their third axis, for each token."""
    KEY_FIELDS: ClassVar = ("k",)
    """Those of them that have the key/value heads."""

    def __init__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        lse: Tensor,
        mask: Mask,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        axes: Axes = Axes(),  # noqa: B008 (immutable)
        precise: PreciseHeads | None = None,
        kept: KeptOverview | None = None,
    ) -> None:
        self.q = q  # (B, H, T, D)
        self.k = k  # (B, G, S, D)
        self.lse = lse  # (B, H, T)
        self.mask = mask
        self.scale = scale
        self.softcap = softcap
        self.sinks = sinks  # (H,)
        self.axes = axes
        self._precise = precise
        self.kept = kept

    def _with(self, **fields: Any) -> Self:
        """A copy with some fields changed. `precise` is found again, and `kept` gone, unless given here."""
        names = ("q", "k", "lse", "mask", "scale", "softcap", "sinks", "axes")
        return type(self)(**{name: getattr(self, name) for name in names} | fields)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that it is made of, by their fields."""
        tensors = {"q": self.q, "k": self.k, "lse": self.lse}
        return tensors if self.sinks is None else tensors | {"sinks": self.sinks}

    def _with_tokens(self, tensors: Mapping[str, Tensor], mask: Mask) -> Self:
        """The map with other tokens: their `TOKEN_FIELDS`, and the mask between them."""
        return self._with(**tensors, mask=mask)

    def _stored(self) -> StoredMap:
        tensors = self.tensors()
        if self.kept is not None:
            tensors |= dict(zip(KEPT, (self.kept.mass, self.kept.max), strict=True))
        options = {
            "mask": describe_mask(self.mask, tensors),
            "scale": self.scale,
            "softcap": self.softcap,
            "axes": list(self.axes),
            "kept": None if self.kept is None else self.kept.size,
        }
        return StoredMap(FORMAT, tensors, options)

    @property
    def precise(self) -> PreciseHeads:
        """The heads that are computed in float64, since float32 would lose the digits of their scores."""
        if self._precise is None:
            B, H, _, S = self.matrix
            # In float64 every head is precise already, and an empty map has no head whose size could be asked
            # for.
            if self.dtype == torch.float64 or 0 in self.matrix:
                self._precise = no_large_heads(B, H)
            else:
                half = self.q.dtype != torch.float32
                uncapped = None if self.softcap is None else score_size(self.q, self.k, self.scale)
                self._precise = find_large_heads(self.lse, self.mask, S, self.first_position, half, uncapped)
        return self._precise

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """(B, H, T, S), also where the batch or head axis was indexed away."""
        B, H, T, _ = self.q.shape
        return B, H, T, self.k.shape[2]

    @property
    def first_position(self) -> int:
        """The position of the first query among the keys."""
        _, _, T, S = self.matrix
        return self.mask.first_position(T, S)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        own = working_dtype(self.q.dtype)
        return own if self.lse.dtype == own else torch.promote_types(own, self.lse.dtype)

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of q and k."""
        return self.q.dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """The dtype of exponentials and sums; large scores are computed in a wider one."""
        return working_dtype(self.q.dtype)

    @property
    def device(self) -> torch.device:
        """The device of q, k and lse."""
        return self.q.device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The map on another device or with q and k in another dtype; takes the arguments of `Tensor.to`."""
        q, k = self.q.to(*args, **kwargs), self.k.to(*args, **kwargs)
        # The lse is as exact as the weights are to be, whatever dtype q and k have.
        lse = self.lse.to(device=q.device, dtype=working_dtype(q.dtype))
        sinks = None if self.sinks is None else self.sinks.to(q.device)
        exact = torch.promote_types(q.dtype, self.q.dtype) == q.dtype  # no number of q and k has changed
        precise = self.precise.to(q.device) if exact else None
        # An overview is of the weights as they were computed, in their own dtype.
        kept = self.kept if exact and lse.dtype == self.lse.dtype else None
        kept = None if kept is None else kept.to(q.device)
        return self._with(q=q, k=k, lse=lse, sinks=sinks, precise=precise, kept=kept)

    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> Self:
        """Select the sequences `batch` and the `heads`; `axes`, by default the same, are left to index."""
        return self._with(
            q=self.q[batch, heads],
            k=select_kv_heads(self.k[batch], heads, self.q.shape[1]),
            lse=self.lse[batch, heads],
            mask=self.mask.select(batch, heads),
            sinks=None if self.sinks is None else self.sinks[heads],
            axes=self.axes if axes is None else axes,
            precise=self.precise.select(batch, heads),
            kept=None if self.kept is None else self.kept.select(batch, heads),
        )

    def select_rows(self, rows: slice) -> Self:
        """Select a run of rows, which keep their positions among the keys."""
        T = self.matrix[2]
        start, stop, _ = rows.indices(T)
        if (start, stop) == (0, T):
            return self
        return self._with(
            q=self.q[:, :, rows],
            lse=self.lse[:, :, rows],
            mask=Rows(self.mask, start, T),
            # `kept` is left out: its cells begin at the first row of the whole map.
            precise=self.precise.select_rows(rows),
        )

    def select_keys(self, keys: slice) -> Self:
        """Select a run of keys, so that rows no longer sum to 1.

        An lse in float64 has to be complete, as it cannot be computed from some keys.
        """
        S = self.matrix[3]
        if keys == slice(0, S):
            return self
        mask = Keys(self.mask, keys.start, S)
        # `precise` stays, since the float64 lse is that of all keys, and cannot be computed from some.
        return self._with(k=self.k[:, :, keys], mask=mask, precise=self.precise)
