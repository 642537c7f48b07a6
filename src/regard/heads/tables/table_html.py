"""A table of heads as a notebook shows it: a row for each head with what it does, its score and the baseline.

`table_text` is the same for the terminal. This file knows tables of heads.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from regard.heads.tables.head_sentence import best_score, describe_head, head_title
from regard.heads.tables.score_words import about, title
from regard.heads.tables.table_text import IMPORTANCE, importance_cells
from regard.support.cell_output import bundle
from regard.support.table import MOST_ROWS, Table

if TYPE_CHECKING:
    from regard.heads.tables.table import HeadRow, HeadTable, Score


def table_output(table: HeadTable) -> dict[str, str]:
    """Return what a notebook shows of a table. Of a long one, the most important or labelled heads."""
    has_importance = IMPORTANCE in table.names
    heads = table.rows
    if len(heads) > MOST_ROWS:
        labelled_first = sorted(heads, key=lambda row: row.label is None)
        heads = table.sorted(IMPORTANCE).rows if has_importance else labelled_first
    does = any(row.labels for row in heads) or not has_importance
    rows = [
        (
            row.key,
            row.head,
            *((head_title(row),) if does else ()),
            *(importance_cells(row) if has_importance else (*_score(row), describe_head(row))),
        )
        for row in heads
    ]
    names = (IMPORTANCE, "95%") if has_importance else ("score", "uniform", "in a sentence")
    caption = "uniform: of uniform attention to the visible keys."
    if has_importance:
        caption = f"{about(IMPORTANCE)}; the 95% interval holds for all heads together (Bonferroni)"
    columns = ("layer", "head", *(("does",) if does else ()), *names)
    return Table(columns, rows).output(repr(table), caption)


def row_output(row: HeadRow) -> dict[str, str]:
    """Return what a notebook shows of one head."""
    says = f"Layer {row.key}, head {row.head}: {head_title(row)}. {describe_head(row)}"
    rows = [
        (title(name), _number(score.value), _number(score.null), _interval(score))
        for name, score in row.scores.items()
    ]
    scores = Table(("score", "value", "uniform", "95%"), rows)
    return bundle(says, f"<p>{html.escape(says)}</p>{scores.html()}")


def _score(row: HeadRow) -> tuple[str, str]:
    """The score behind the first label, and that of uniform attention."""
    if row.label is None:
        return "", ""
    score, _ = best_score(row, row.label)
    return _number(score.value), _number(score.null)


def _interval(score: Score) -> str:
    return "" if math.isnan(score.low) else f"{_number(score.low)}–{_number(score.high)}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
