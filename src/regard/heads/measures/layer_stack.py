"""A stack of layers: layers of one shape and mask as the heads of one map.

A score of all of them then takes the operations of one layer. On a GPU, and for short texts on a CPU,
starting an operation takes longer than computing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import torch

from regard.heads.measures.query_scores import KnownStatistics, TextScorer
from regard.maps import AttentionMap, LinearAttentionMap

MAX_NUMBERS, MAX_NUMBERS_ON_GPU = 1 << 22, 1 << 27
"""The most numbers of q in a stack, which are copied: 16 MiB in float32, 256 MiB in bfloat16."""


class PendingLayer(NamedTuple):
    """A layer that is to be measured, and its statistics if they are known."""

    map: AttentionMap | LinearAttentionMap
    scorer: TextScorer
    statistics: KnownStatistics | None


def can_join(stack: Sequence[PendingLayer], layer: PendingLayer) -> bool:
    """Whether a layer can be measured with those before it."""
    first, m = stack[0].map, layer.map
    if type(m) is not AttentionMap or type(first) is not AttentionMap or layer.scorer is not stack[0].scorer:
        return False
    # A mask that distinguishes heads is that of one layer's heads.
    if m.mask.biased or layer.scorer.visibility.keys.shape[1] != 1:
        return False
    same = all(_settings(m)[i] == setting for i, setting in enumerate(_settings(first)))
    limit = MAX_NUMBERS if m.device.type == "cpu" else MAX_NUMBERS_ON_GPU
    return same and (len(stack) + 1) * m.q.numel() <= limit


def _settings(m: AttentionMap) -> tuple[object, ...]:
    return m.q.shape, m.k.shape, m.q.dtype, m.lse.dtype, m.scale, m.softcap, m.sinks is None


def join_maps(maps: Sequence[AttentionMap]) -> AttentionMap:
    """The maps (B, H, T, S) of several layers as one of layers · H heads."""
    first = maps[0]
    if len(maps) == 1:
        return first
    fields = {name: torch.cat([getattr(m, name) for m in maps], 1) for name in ("q", "k", "lse")}
    sinks = None if first.sinks is None else torch.cat([m.sinks for m in maps if m.sinks is not None])
    return first._with(**fields, sinks=sinks)


def join_statistics(layers: Sequence[PendingLayer]) -> KnownStatistics | None:
    """The statistics of several layers as those of one map; None unless all are known."""
    known = [layer.statistics for layer in layers if layer.statistics is not None]
    if len(known) < len(layers):
        return None
    if len(known) == 1:
        return known[0]
    names = ("entropy", "distance", "received")
    return SimpleNamespace(**{name: torch.cat([getattr(x, name) for x in known], 1) for name in names})
