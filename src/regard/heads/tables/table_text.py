"""A table of heads for the terminal: the labels of each head with their scores and baselines.

Heads stand under their key/value head. The table fits 80 columns; Rich draws it, without a terminal as plain
text.
"""

from __future__ import annotations

import math
from io import StringIO
from typing import TYPE_CHECKING, Any

from regard.heads.labels import REPEATS
from regard.heads.tables.head_sentence import best_score, label_words
from regard.heads.tables.score_words import SCORE_WORDS, about, title
from regard.support.characters import escape
from regard.support.imports import extra

if TYPE_CHECKING:
    from regard.heads.tables.table import HeadRow, HeadTable

IMPORTANCE = "importance"
COLOURS = {
    "induction": "bold magenta",
    "duplicate": "magenta",
    "retrieval": "magenta",
    "previous_token": "bold cyan",
    "itself": "cyan",
    "sink": "yellow",
    "one_token": "yellow",
    "fixed_offset": "blue",
    "local": "green",
}


def words(name: str) -> str:
    """Return a score's title for the table, such as "previous token" or "self"."""
    return title(name.removesuffix(REPEATS))


def printed(table: HeadTable, width: int = 80) -> str:
    """The table as plain text."""
    return as_text(rendered(table), width)


def as_text(drawn: Any, width: int = 80) -> str:
    """What Rich draws, as plain text."""
    with extra("app", "printing a HeadTable"):
        from rich.console import Console

    file = StringIO()
    Console(file=file, width=width, color_system=None).print(drawn)
    return file.getvalue().rstrip("\n")


def rendered(table: HeadTable) -> Any:
    """The table for Rich to draw: a line for each label of a head, one for a head that has none."""
    with extra("app", "printing a HeadTable"):
        from rich.table import Table
        from rich.text import Text

    how = "shuffled" if table.shuffled == "text" else "relabel"
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    has_importance = IMPORTANCE in table.names
    for name, side in (
        ("layer", "right"),
        ("kv", "right"),
        ("head", "right"),
        ("does", "left"),
        ("score", "right"),
        ("95%", "left"),
        ("uniform", "right"),
        (how, "right"),
        *(
            ((IMPORTANCE, "right"), ("95%", "left"))
            if has_importance
            else (("no sink", "right"), ("entropy", "right"))
        ),
    ):
        drawn.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    before: tuple[int | str, int] | None = None
    for row in table:
        # Layer and key/value head are printed where they change.
        group = (row.key, row.kv_head)
        numbers = (
            Text(escape(row.key) if before is None or row.key != before[0] else ""),
            str(row.kv_head) if group != before else "",
            str(row.head),
        )
        if before is not None and row.key != before[0]:
            drawn.add_row()
        before = group
        # What is said of a head once, whatever its labels are.
        normalised = (
            number(row.scores["normalised_entropy"].value) if "normalised_entropy" in row.scores else ""
        )
        of_head = importance_cells(row) if has_importance else ("", normalised)
        if not row.labels:
            drawn.add_row(*numbers, Text("–", style="dim"), *[""] * 4, *of_head)
        for i, name in enumerate(row.labels):
            score, on_repeats = best_score(row, name)
            label = label_words(row, name)
            drawn.add_row(
                *(("", "", "") if i else numbers),
                Text(label + ("*" if on_repeats else ""), style=COLOURS.get(name, "")),
                Text(number(score.value), style="bold"),
                f"{number(score.low)}–{number(score.high)}",
                number(score.null),
                number(score.shuffled),
                *((number(score.without_sink) if name != "sink" else "",) if not has_importance else ()),
                *(("",) * (1 + has_importance) if i else of_head[-1 - has_importance :]),
            )
    return drawn


def caption(table: HeadTable) -> str:
    """An explanation of the labels in the table and of the columns, in a line each."""
    labels = {name for row in table for name in row.labels}
    lines = [f"{score.title}: {about(score.name)}" for score in SCORE_WORDS if score.name in labels]
    lines += explain_columns(table, any(best_score(row, name)[1] for row in table for name in row.labels))
    if IMPORTANCE not in table.names:
        lines.append("entropy: of the attention, as a share of its maximum")
    return "\n".join(lines)


def explain_columns(table: HeadTable, on_repeats: bool) -> list[str]:
    """An explanation of the columns beside a score; of the star too, if some scores are `on_repeats`."""
    lines = [
        "95%: interval of the score over "
        + (f"{table.texts} texts" if table.texts > 1 else "blocks of the text"),
        "uniform: score of uniform attention to the visible keys",
        "shuffled: score of the model on the same tokens in random order"
        if table.shuffled == "text"
        else "relabel: score of the same attention with the tokens shuffled",
        f"{IMPORTANCE}: {about(IMPORTANCE)}; its 95% interval holds for all heads together (Bonferroni)"
        if IMPORTANCE in table.names
        else "no sink: score when the rows are renormalised without the sink",
    ]
    if on_repeats:
        lines.append("*: on random tokens, repeated")
    return lines


def importance_cells(row: HeadRow) -> tuple[str, str]:
    """The importance of a head and its interval, empty where it was not measured."""
    score = row.scores.get(IMPORTANCE)
    if score is None:
        return "", ""
    interval = "" if math.isnan(score.low) else f"{score.low:+.3f} {score.high:+.3f}"
    return f"{score.value:+.3f}", interval


def number(x: float) -> str:
    """Two decimals, three where that would be 0.00.

    >>> number(0.713), number(0.0042), number(0.0), number(float("nan"))
    ('0.71', '.004', '0.00', '')
    """
    if math.isnan(x):
        return ""
    return f"{x:.3f}".removeprefix("0") if 0.0005 <= x < 0.005 else f"{x:.2f}"
