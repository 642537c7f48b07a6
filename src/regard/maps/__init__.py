"""The matrix that nobody stores: `AttentionMap`, its statistics, its overviews and its files."""

from regard.maps.map import AttentionMap, weights
from regard.maps.storage import load

__all__ = ["AttentionMap", "load", "weights"]
