"""Head behaviour: scores of every head, each with the baseline of uniform attention, and labels."""

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
