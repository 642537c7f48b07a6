"""Comparison: how two captures differ, head by head, on the tokens that they share."""

from regard.comparison.captures import Comparison, HeadDifference, compare

__all__ = ["Comparison", "HeadDifference", "compare"]
