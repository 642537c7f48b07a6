"""The matrix that nobody stores: `AttentionMap`, its statistics, its overviews and its files."""

from regard.maps.map import AttentionMap, attention_map
from regard.maps.storage import load

__all__ = ["AttentionMap", "attention_map", "load"]
