"""What heads do: scores of their behaviour, beside what a head that looks everywhere alike would score."""

from regard.heads.describing import describe, study
from regard.heads.probe import probe, repeated
from regard.heads.scores import Scores, scores
from regard.heads.sight import uniform
from regard.heads.table import Head, HeadTable, Score

__all__ = [
    "Head",
    "HeadTable",
    "Score",
    "Scores",
    "describe",
    "probe",
    "repeated",
    "scores",
    "study",
    "uniform",
]
