"""Head behaviour: scores of every head, each with the baseline of uniform attention, and labels."""

from regard.heads.description import describe, study
from regard.heads.head_scores import HeadScores, scores
from regard.heads.repeated_tokens import probe, repeated
from regard.heads.table import HeadRow, HeadTable, Score
from regard.heads.table_difference import ComparedRow, ScoreDifference, TableDifference
from regard.heads.visibility import uniform

__all__ = [
    "ComparedRow",
    "HeadRow",
    "HeadScores",
    "HeadTable",
    "Score",
    "ScoreDifference",
    "TableDifference",
    "describe",
    "probe",
    "repeated",
    "scores",
    "study",
    "uniform",
]
