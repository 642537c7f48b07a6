"""Layers whose evictions are measured together, as the entries of one batch.

A policy is asked hundreds of times on the way through a short text, and each time starting the operations
takes longer than computing them. Layers of one shape are full at the same tokens, so that all are asked at
once. The numbers are those of each layer alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.policies.cache_state import CacheState, is_plainly_causal
from regard.policies.measurement import NUMBERS, HeadOutputs, MapRetention, measure
from regard.policies.policy import Eviction


class CachedLayer(NamedTuple):
    """A layer to measure: its key, the numbers of its heads, its map, and its values if they are stored."""

    key: int | str
    heads: tuple[int, ...]
    map: AttentionMap
    values: Tensor | None


class JoinedLayers(NamedTuple):
    """Layers of one shape, and the map (layers · B, H, T, S) and values of all of them."""

    layers: Sequence[CachedLayer]
    map: AttentionMap
    values: Tensor | None

    def measure(
        self, policy: Eviction, budget: int | None, every: int | None, wholes: Sequence[HeadOutputs]
    ) -> list[MapRetention]:
        """Measure an eviction policy; `wholes` are what `attend_whole` gives of each layer."""
        whole = HeadOutputs(*map(torch.cat, zip(*wholes, strict=True)))
        found = measure(self.map, self.values, self._policy(policy), budget, every, whole=whole)
        n = len(self.layers)
        columns = [[None] * n if x is None else x.chunk(n) for x in found]
        return [MapRetention(*parts) for parts in zip(*columns, strict=True)]

    def _policy(self, policy: Eviction) -> Eviction:
        """The policy of all layers, where each has its own."""
        if policy.in_layer is None:
            return policy
        own = [policy.in_layer(layer.key) for layer in self.layers]
        accumulates = any(one.accumulates for one in own)

        def score(cache: CacheState) -> Tensor:
            positions = cache.positions.chunk(len(own))
            received = cache.received.chunk(len(own)) if accumulates else [None] * len(own)
            states = [
                CacheState(layer.map, at, cache.now, cache.budget, sums)
                for layer, at, sums in zip(self.layers, positions, received, strict=True)
            ]
            return torch.cat([one.score(state) for one, state in zip(own, states, strict=True)])

        return replace(policy, score=score, accumulates=accumulates, in_layer=None)


def join_layers(layers: Iterable[CachedLayer]) -> Iterator[JoinedLayers]:
    """Join consecutive layers of one shape that are causal and nothing else, as long as they are small."""
    run: list[CachedLayer] = []
    for layer in layers:
        if run and (_settings(layer) is None or _settings(layer) != _settings(run[0])):
            yield _join(run)
            run = []
        run.append(layer)
        # Before the next one is read: a long text is measured layer by layer.
        if (len(run) + 1) * math.prod(layer.map.matrix) > NUMBERS:
            yield _join(run)
            run = []
    if run:
        yield _join(run)


def _settings(layer: CachedLayer) -> tuple[object, ...] | None:
    """What layers of one map have in common; None for a layer that stays alone."""
    m, v = layer.map, layer.values
    if m.sinks is not None or not is_plainly_causal(m):
        return None
    values = None if v is None else (v.shape, v.dtype, v.device)
    return m.q.shape, m.k.shape, m.q.dtype, m.k.dtype, m.lse.dtype, m.device, m.scale, m.softcap, values


def _join(run: Sequence[CachedLayer]) -> JoinedLayers:
    first = run[0]
    if len(run) == 1:
        return JoinedLayers(tuple(run), first.map, first.values)
    fields = {name: torch.cat([getattr(layer.map, name) for layer in run]) for name in ("q", "k", "lse")}
    values = [layer.values for layer in run if layer.values is not None]
    return JoinedLayers(tuple(run), first.map._with(**fields), torch.cat(values) if values else None)
