"""`CacheState`: what a serving engine knows of a layer at the moment when its cache is full.

A cache holds some of the keys so far, each key/value head its own; they are a list of positions, never a
matrix. This file knows maps; it does not know which keys a policy keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.tensor_masks import TensorMask
from regard.attention.steps import softmax
from regard.maps import AttentionMap
from regard.maps.tile_passes.dense_rows import scaled_scores


class KeyVisibility(NamedTuple):
    """Which keys some queries see, (B, H, rows, n), and what is added to their scores, if anything."""

    allowed: Tensor
    bias: Tensor | None

    def mask(self) -> Mask:
        """The same as a mask of these queries and keys alone."""
        if self.bias is None:
            return TensorMask(self.allowed)
        return TensorMask(self.bias.masked_fill(~self.allowed, -torch.inf))


def is_plainly_causal(m: AttentionMap) -> bool:
    """Whether every query sees every key up to its own, and nothing is added to the scores."""
    _, _, T, S = m.matrix
    band = None if m.mask.biased else m.mask.band(T, S)
    return band is not None and (band.behind, band.ahead) == (None, 0)


def find_visible(m: AttentionMap, rows: slice, positions: Tensor) -> KeyVisibility:
    """Which keys at `positions` (B, G, n) some rows of a map see, each key/value head with its own list."""
    B, H, T, S = m.matrix
    at = positions.repeat_interleave(H // positions.shape[1], 1).unsqueeze(2)  # (B, H, 1, n)
    queries = torch.arange(rows.start, rows.stop, device=m.device)
    if is_plainly_causal(m):
        return KeyVisibility(at <= queries[:, None] + S - T, None)
    shape = (B, H, len(queries))
    at = at.expand(*shape, -1)
    # A few rows of the matrix, as many as stand between two evictions.
    allowed = m.mask.tile(rows, slice(0, S), m.matrix, device=m.device).expand(*shape, S).gather(-1, at)
    bias = m.mask.bias(rows, slice(0, S), m.matrix, device=m.device)
    return KeyVisibility(allowed, None if bias is None else bias.detach().expand(*shape, S).gather(-1, at))


class CacheState:
    """What a serving engine knows of a layer when its cache is full, and a policy chooses the keys to keep.

    - `m`: the layer's map, of which a policy may read the queries and keys up to now, by the fields below.
    - `positions` (B, G, n): the positions of the cached keys in the text, increasing, for each key/value
      head.
    - `now`: the number of tokens read so far.
    - `budget`: the number of keys that the cache has room for.
    - `received` (B, G, n): the attention that every cached key has received so far, summed over the queries
      and averaged over the query heads that share it. Only a policy with `accumulates=True` has it.
    """

    def __init__(
        self, m: AttentionMap, positions: Tensor, now: int, budget: int, received: Tensor | None = None
    ) -> None:
        self._map = m
        self.positions = positions
        self.now = now
        self.budget = budget
        self._received = received
        self._visible: Tensor | None = None

    @property
    def queries(self) -> Tensor:
        """All queries so far, (B, H, now, D)."""
        return self._map.q[:, :, : self.now]

    @property
    def keys(self) -> Tensor:
        """The cached keys, (B, G, n, D)."""
        return gather_keys(self._map.k, self.positions)

    @property
    def visible(self) -> Tensor:
        """Whether the newest query sees each cached key, boolean (B, G, n): padding and other documents are
        not seen, nor what a window has left behind."""
        if self._visible is None and is_plainly_causal(self._map):
            self._visible = torch.ones_like(self.positions, dtype=torch.bool)
        elif self._visible is None:
            newest = slice(self.now - 1, self.now)
            allowed = find_visible(self._map, newest, self.positions).allowed  # (B, H, 1, n)
            B, G, n = self.positions.shape
            self._visible = allowed.reshape(B, G, -1, n).any(2)
        return self._visible

    @property
    def received(self) -> Tensor:
        """The attention that every cached key has received so far, (B, G, n)."""
        if self._received is None:
            raise ValueError(
                "received: write Eviction(name, score, accumulates=True) for a policy that uses it"
            )
        return self._received

    def attention(self, last: int) -> Tensor:
        """The weights of the `last` queries on the cached keys alone, (B, H, last, n).

        The engine has no other keys, so that rows sum to 1 over these.
        """
        rows, m = slice(max(self.now - last, 0), self.now), self._map
        dtype = working_dtype(m.q.dtype)
        scores = scaled_scores(m.q[:, :, rows].to(dtype), self.keys.to(dtype), m.scale, m.softcap)
        visibility = find_visible(m, rows, self.positions)
        if visibility.bias is not None:
            scores = scores + visibility.bias
        return softmax(scores.masked_fill_(~visibility.allowed, -torch.inf), m.sinks)

    def by_kv_head(self, x: Tensor) -> Tensor:
        """The mean of x (B, H, …) over the query heads that share a key/value head: (B, G, …)."""
        B, G, _ = self.positions.shape
        return x.reshape(B, G, -1, *x.shape[2:]).mean(2)


def gather_keys(x: Tensor, positions: Tensor) -> Tensor:
    """The keys or values of x (B, G, S, D) at `positions` (B, G, n): (B, G, n, D)."""
    return x.gather(2, positions.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))
