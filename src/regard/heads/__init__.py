"""Head behaviour: scores of every head, each with the baseline of uniform attention, and labels."""

from regard.heads.corpus_survey.survey_result import SurveyResult, read_survey
from regard.heads.measures.head_scores import HeadScores, scores
from regard.heads.measures.visible_keys import uniform
from regard.heads.needle_texts import Needle
from regard.heads.repeated_tokens import probe, repeated
from regard.heads.retrieval import NeedleTest, needle
from regard.heads.tables.description import describe, study
from regard.heads.tables.table import HeadRow, HeadTable, Score
from regard.heads.tables.table_difference import ComparedRow, ScoreDifference, TableDifference

__all__ = [
    "ComparedRow",
    "HeadRow",
    "HeadScores",
    "HeadTable",
    "Needle",
    "NeedleTest",
    "Score",
    "ScoreDifference",
    "SurveyResult",
    "TableDifference",
    "describe",
    "needle",
    "probe",
    "read_survey",
    "repeated",
    "scores",
    "study",
    "uniform",
]
