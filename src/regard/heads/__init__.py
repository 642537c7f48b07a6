"""What heads do: scores of their behaviour, beside what a head that looks everywhere alike would score."""

from regard.heads.description import describe, study
from regard.heads.head_scores import HeadScores, scores
from regard.heads.repeated_tokens import probe, repeated
from regard.heads.table import HeadRow, HeadTable, Score
from regard.heads.visibility import uniform

__all__ = [
    "HeadRow",
    "HeadScores",
    "HeadTable",
    "Score",
    "describe",
    "probe",
    "repeated",
    "scores",
    "study",
    "uniform",
]
