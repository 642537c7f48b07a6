"""What heads do: scores of their behaviour, beside what a head that looks everywhere alike would score."""

from regard.heads.description import describe, study
from regard.heads.head_scores import Scores, scores
from regard.heads.repeated_tokens import probe, repeated
from regard.heads.table import Head, HeadTable, Score
from regard.heads.visibility import uniform

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
