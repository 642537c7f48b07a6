"""What heads do: scores of their behaviour, beside what a head that looks everywhere alike would score."""

from regard.heads.probe import probe, repeated
from regard.heads.scores import Scores, scores, uniform

__all__ = ["Scores", "probe", "repeated", "scores", "uniform"]
