"""Maps in float32 for pictures and scores, where nobody sees the digits that float64 would add.

A map computes heads with large scores in float64, which costs three times as much and needs the row
log-sum-exp once more. Up to `LARGEST_LSE` float32 errs by less than 1e-4 of a weight. Single weights that the
page writes out, and those of one query, stay as exact as the map has them.
"""

from __future__ import annotations

from typing import TypeVar, cast

from regard.maps import AttentionMap, LinearAttentionMap, WeightedMap
from regard.maps.data import MapData
from regard.maps.tile_passes.large_heads import PreciseHeads

LARGEST_LSE = 128.0  # a score of this size, rounded to float32, changes its weight by 1e-5

Map = TypeVar("Map", bound=AttentionMap | LinearAttentionMap | WeightedMap)


def for_display(m: Map) -> Map:
    """Return the map with float32 for all heads whose row log-sum-exp is at most `LARGEST_LSE`."""
    if isinstance(m, LinearAttentionMap):
        return m
    if isinstance(m, WeightedMap):
        return cast(Map, WeightedMap(_in_float32(m.attention), m.u))
    return cast(Map, _in_float32(m))


def _in_float32(m: MapData) -> MapData:
    # A soft cap hides the size of the scores from lse.
    if m.softcap is not None or not bool(m.precise.large.any()):
        return m
    size = m.lse.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)  # (B, H); −inf is a row without keys
    large = m.precise.large & (size.cpu() > LARGEST_LSE)
    return m._with(precise=PreciseHeads(large, m.precise.lse if bool(large.any()) else None), kept=m.kept)
