"""Comparison: how two captures differ, head by head, on the tokens that they share."""

from regard.comparison.captures import Comparison, HeadDifference, compare
from regard.comparison.first_difference import PartDifference, Parting

__all__ = ["Comparison", "HeadDifference", "PartDifference", "Parting", "compare"]
