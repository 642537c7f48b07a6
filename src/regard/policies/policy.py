"""The two kinds of policies: one evicts keys from a cache for good, the other chooses keys for each query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.grid import grid
from regard.maps import AttentionMap
from regard.maps.tile_passes.dense_rows import scaled_scores
from regard.policies.cache_state import CacheState, is_plainly_causal


@dataclass(frozen=True)
class Eviction:
    """A policy that evicts keys: those with the lowest scores, for good, whenever the cache is full.

    - `name`: what tables call it.
    - `score`: a function of a `CacheState` that gives every cached key of every key/value head a number,
      (B, G, n); +inf keeps a key for certain. Keys that the newest query does not see are evicted first.
    - `accumulates`: whether `score` reads `CacheState.received`, which costs a pass over the cached keys.
    - `in_layer`: a function that gives the policy of a layer by its key, if layers have different ones.
    """

    name: str
    score: Callable[[CacheState], Tensor]
    accumulates: bool = False
    in_layer: Callable[[int | str], Eviction] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Selection:
    """A policy that keeps every key in the cache and chooses blocks of keys for each query.

    - `name`: what tables call it.
    - `score`: a function of a `SelectionState` that gives every block a number for each query,
      (B, G or H, rows, blocks); +inf chooses a block for certain.
    - `block`: the number of keys in a block; a budget of n keys is n // block blocks, one at least.
    """

    name: str
    score: Callable[[SelectionState], Tensor]
    block: int = 1

    def __str__(self) -> str:
        return self.name


class SelectionState:
    """What a serving engine knows when some queries choose their blocks of keys.

    - `m`: the layer's map.
    - `rows`: the queries that choose, a run of them.
    - `block`: the number of keys in a block.
    - `keys`: the first keys, S of them, from which the queries choose: they see no later ones.
    """

    def __init__(self, m: AttentionMap, rows: slice, block: int) -> None:
        self.map, self.rows, self.block = m, rows, block
        B, H, T, S = m.matrix
        self.keys = slice(0, rows.stop + S - T if is_plainly_causal(m) else S)
        at = grid(rows, self.keys, m.matrix, m.device)
        self.allowed = m.mask.allowed(at).expand(B, H, rows.stop - rows.start, self.keys.stop)
        """Whether each query sees each key, boolean (B, H, rows, S)."""

    @property
    def queries(self) -> Tensor:
        """The queries that choose, (B, H, rows, D)."""
        return self.map.q[:, :, self.rows]

    def key_blocks(self) -> Tensor:
        """The keys in their blocks, (B, G, blocks, block, D); the last block is filled up with its last key.

        Only the newest block of a query may hold keys that are later than it.
        """
        k = self.map.k[:, :, self.keys]
        missing = -k.shape[2] % self.block
        k = torch.cat([k, k[:, :, -1:].expand(-1, -1, missing, -1)], 2) if missing else k
        B, G, _, D = k.shape
        return k.reshape(B, G, -1, self.block, D)

    def products(self, vectors: Tensor, queries: Tensor | None = None) -> Tensor:
        """The products of the queries, or of `queries` in their place, with `vectors` (B, G, blocks, D).

        They are (B, H, rows, blocks).
        """
        # Not in half precision, whose rounding makes ties that every machine breaks in its own way.
        q = (self.queries if queries is None else queries).to(self.map.dtype)
        return scaled_scores(q, vectors.to(q.dtype), 1.0)

    def choose_newest(self, scores: Tensor) -> Tensor:
        """The greatest of the `scores` (B, H, rows, blocks) of the query heads that share a key/value head.

        The block of each query itself, which every engine reads, has +inf.
        """
        (B, _, T, S), G = self.map.matrix, self.map.k.shape[1]
        scores = scores.reshape(B, G, -1, *scores.shape[2:]).amax(2)
        positions = torch.arange(self.rows.start, self.rows.stop, device=scores.device) + S - T
        own = (positions // self.block)[:, None] == torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(own, torch.inf)


Policy = Eviction | Selection


def policy_of_layer(policy: Policy, layer: int | str) -> Policy:
    """The policy of one layer, by the layer's key; most are the same in all layers."""
    if isinstance(policy, Eviction) and policy.in_layer is not None:
        return policy.in_layer(layer)
    return policy
