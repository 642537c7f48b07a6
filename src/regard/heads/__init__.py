"""Head behaviour: scores of every head, each with the baseline of uniform attention, and labels."""

from regard.heads.description import describe, study
from regard.heads.head_scores import HeadScores, scores
from regard.heads.needle_texts import Needle
from regard.heads.repeated_tokens import probe, repeated
from regard.heads.retrieval import NeedleTest, needle
from regard.heads.table import HeadRow, HeadTable, Score
from regard.heads.table_difference import ComparedRow, ScoreDifference, TableDifference
from regard.heads.visibility import uniform

__all__ = [
    "ComparedRow",
    "HeadRow",
    "HeadScores",
    "HeadTable",
    "Needle",
    "NeedleTest",
    "Score",
    "ScoreDifference",
    "TableDifference",
    "describe",
    "needle",
    "probe",
    "repeated",
    "scores",
    "study",
    "uniform",
]
