"""`AttentionMap`: a matrix of attention weights that is computed on demand instead of stored."""

from regard.maps.map import AttentionMap, attention_map, load

__all__ = ["AttentionMap", "attention_map", "load"]
