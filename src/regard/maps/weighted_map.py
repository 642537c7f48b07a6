"""`WeightedMap`: attention weights times a number for each key, A_ij · u_j, computed on demand.

With u_j = ‖W_O v_j‖ it is value-weighted attention; with the part of v_j along a direction, what each edge
adds to a logit. This file does not know where u comes from.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from regard.attention.backends.tiles import find_visibility
from regard.attention.masks.grid import Blocks
from regard.maps.data import MapData
from regard.maps.index import Axes
from regard.maps.signed_map import SignedMap
from regard.maps.tile_passes import overview, reductions


class WeightedMap(SignedMap):
    """The weights of a map times numbers u for its keys: entries A_ij · u_j of either sign, on demand.

    It is made by `m.weighted(u)`. Its fields are the map, `attention`, and `u` (B, H, S).
    """

    def __init__(self, attention: MapData, u: Tensor) -> None:
        self.attention, self.u = attention, u
        self.axes: Axes = attention.axes

    def __repr__(self) -> str:
        size = "×".join(str(n) for n in self.shape)
        return f"WeightedMap({size}, {self.attention.mask}, {str(self.dtype).removeprefix('torch.')})"

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        return self.attention.matrix

    @property
    def dtype(self) -> torch.dtype:
        return self.attention.dtype

    @property
    def device(self) -> torch.device:
        return self.attention.device

    def select(self, batch: slice, heads: slice, axes: Axes | None = None) -> Self:
        return type(self)(self.attention.select(batch, heads, axes), self.u[batch, heads])

    def select_rows(self, rows: slice) -> Self:
        return type(self)(self.attention.select_rows(rows), self.u)

    def tile(self, rows: slice | Tensor, keys: slice | Tensor = slice(None)) -> Tensor:
        return self._shaped(reductions.tile(self.attention, rows, keys) * self.u[:, :, None, keys])

    def visible_blocks(self, blocks: Blocks) -> Tensor:
        return find_visibility(self.attention.mask, blocks)[0]

    def _pool(self, rows: Tensor, cols: Tensor, reduce: str) -> overview.Overview:
        return overview.Overview(*map(self._shaped, reductions.pool(self.attention, rows, cols, self.u)))

    def row_sums(self) -> Tensor:
        """The sum of every row, (B, H, T): the map times u, by fused attention."""
        return self._shaped(reductions.row_sums(self.attention, self.u))

    def _received(self, row_weights: Tensor) -> Tensor:
        B, H, T, _ = self.matrix
        return self._shaped(reductions.received(self.attention, row_weights.reshape(B, H, T)) * self.u)

    def __matmul__(self, v: Tensor) -> Tensor:
        """The entries times values v (B, G, S, E), by fused attention: (B, H, T, E)."""
        values = self._head_values(v)
        group = self.matrix[1] // max(values.shape[1], 1)
        values = values.repeat_interleave(group, 1) * self.u.unsqueeze(-1)  # (B, H, S, E)
        return self._shaped(reductions.multiply(self.attention, values).to(v.dtype))

    @property
    def _key_heads(self) -> int:
        return self.attention.k.shape[1]

    def diagonal(self, offset: int = 0) -> Tensor:
        diagonal = reductions.diagonal(self.attention, offset)  # (B, H, N)
        # The key of the first entry: below the main diagonal it is key 0.
        first = max(0, offset)
        return self._shaped(diagonal * self.u[:, :, first : first + diagonal.shape[-1]])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The map on another device or with q and k in another dtype; takes the arguments of `Tensor.to`."""
        attention = self.attention.to(*args, **kwargs)
        return type(self)(attention, self.u.to(attention.device, attention.dtype))
