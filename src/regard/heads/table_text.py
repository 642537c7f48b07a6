"""A table of heads for the terminal: what each does, its score beside the nulls, under its key/value head.

Fits 80 columns. Rich draws it; without a terminal it is plain text.
"""

from __future__ import annotations

import math
from io import StringIO
from typing import TYPE_CHECKING, Any

from regard.extras import extra
from regard.heads.labels import REPEATS
from regard.heads.score_words import title

if TYPE_CHECKING:
    from regard.heads.table import HeadRow, HeadTable, Score

COLOURS = {
    "induction": "bold magenta",
    "duplicate": "magenta",
    "previous_token": "bold cyan",
    "itself": "cyan",
    "sink": "yellow",
    "local": "green",
}


def words(name: str) -> str:
    """Return a score's title for the table, such as "previous token" or "self"."""
    return title(name.removesuffix(REPEATS))


def printed(table: HeadTable, width: int = 80) -> str:
    """The table as plain text."""
    with extra("app", "printing a HeadTable"):
        from rich.console import Console

    file = StringIO()
    Console(file=file, width=width, color_system=None).print(rendered(table))
    return file.getvalue().rstrip("\n")


def rendered(table: HeadTable) -> Any:
    """The table for Rich to draw: a line for each label of a head, one for a head that has none."""
    with extra("app", "printing a HeadTable"):
        from rich.table import Table
        from rich.text import Text

    how = "shuffled" if table.shuffled == "text" else "relabel"
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name, side in (
        ("layer", "right"),
        ("kv", "right"),
        ("head", "right"),
        ("does", "left"),
        ("score", "right"),
        ("95%", "left"),
        ("alike", "right"),
        (how, "right"),
        ("no sink", "right"),
        ("spread", "right"),
    ):
        drawn.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    before: tuple[int | str, int] | None = None
    for row in table:
        place = (row.layer, row.kv_head)
        shown = (
            str(row.layer) if before is None or row.layer != before[0] else "",
            str(row.kv_head) if place != before else "",
            str(row.head),
        )
        if before is not None and row.layer != before[0]:
            drawn.add_row()
        before = place
        spread = number(row.scores["normalised_entropy"].value) if "normalised_entropy" in row.scores else ""
        if not row.labels:
            drawn.add_row(*shown, Text("–", style="dim"), *[""] * 5, spread)
        for i, name in enumerate(row.labels):
            at = ("", "", "") if i else shown
            score, probed = _earned(row, name)
            said = words(name) + (f" on {row.sink_key}" if name == "sink" else "") + ("*" if probed else "")
            drawn.add_row(
                *at,
                Text(said, style=COLOURS[name]),
                Text(number(score.value), style="bold"),
                f"{number(score.low)}–{number(score.high)}",
                number(score.null),
                number(score.shuffled),
                number(score.without_sink) if name != "sink" else "",
                "" if i else spread,
            )
    return drawn


def caption(table: HeadTable) -> str:
    """What the columns mean, in a few lines."""
    shuffled = (
        "shuffled: the model reads the same tokens in another order"
        if table.shuffled == "text"
        else "relabel: the same attention, the labels of the tokens shuffled"
    )
    lines = [
        "alike: looking alike at all that can be seen; 95%: over "
        + (f"{table.texts} texts" if table.texts > 1 else "blocks of the text"),
        shuffled,
        "no sink: over the rest of each row; spread: entropy, from 0 (one key) to 1 (all)",
    ]
    if any(_earned(row, name)[1] for row in table for name in row.labels):
        lines.append("*: on random tokens, repeated")
    return "\n".join(lines)


def number(x: float) -> str:
    """Two decimals, three where that would be 0.00.

    >>> number(0.713), number(0.0042), number(0.0), number(float("nan"))
    ('0.71', '.004', '0.00', '')
    """
    if math.isnan(x):
        return ""
    return f"{x:.3f}".removeprefix("0") if 0.0005 <= x < 0.005 else f"{x:.2f}"


def _earned(row: HeadRow, name: str) -> tuple[Score, bool]:
    """The score that a label stands on, and whether it was taken on random repeats: the higher of the two."""
    scores = row.scores
    probed = scores.get(name + REPEATS)
    if probed is None:
        return scores[name], False
    if name not in scores or probed.value > scores[name].value:
        return probed, True
    return scores[name], False
