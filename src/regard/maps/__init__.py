"""The matrix that nobody stores: `AttentionMap`, its statistics, its overviews and its files."""

from regard.maps.files import load
from regard.maps.map import AttentionMap, weights

__all__ = ["AttentionMap", "load", "weights"]
