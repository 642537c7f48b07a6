"""`AttentionMap`: a matrix of attention weights that is computed on demand instead of stored."""

from regard.maps.linear_layer import linear_attention_map
from regard.maps.linear_map import LinearAttentionMap
from regard.maps.map import AttentionMap, attention_map
from regard.maps.signed_map import DifferenceMap, SignedMap
from regard.maps.spans import Spans
from regard.maps.weighted_map import WeightedMap

__all__ = [
    "AttentionMap",
    "DifferenceMap",
    "LinearAttentionMap",
    "SignedMap",
    "Spans",
    "WeightedMap",
    "attention_map",
    "linear_attention_map",
]
