"""The answer first: the clearest few heads of each kind, the sinks as a count.

A large model has hundreds of heads, and most of them are sinks. This file chooses and counts; Rich draws it,
within 80 columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from regard.heads.labels import MIN_SCORES, REPEATS
from regard.heads.tables.head_sentence import best_score, label_words
from regard.heads.tables.score_words import about
from regard.heads.tables.table import HeadRow, HeadTable, Score, canonical_name
from regard.heads.tables.table_text import (
    COLOURS,
    IMPORTANCE,
    explain_columns,
    importance_cells,
    number,
    words,
)
from regard.support.characters import escape
from regard.support.imports import extra

KINDS = tuple(label for label in MIN_SCORES if label != "sink")
"""The labels in the order of the summary; sinks, which most heads are, are counted after them."""
RARE = ("fixed_offset", "one_token")
SINK_KEYS = 2  # the most keys of sinks that are named


def summarised(
    table: HeadTable,
    *,
    top: int | None = 3,
    label: str | None = None,
    key_texts: Mapping[int, str] | None = None,
) -> Any:
    """The clearest `top` heads of each kind for Rich to draw; all of them if `top` is None.

    `label` restricts it to one kind. `key_texts` are the texts of tokens by their positions, which are shown
    beside the keys of sinks.
    """
    with extra("app", "printing a HeadTable"):
        from rich.console import Group
        from rich.text import Text

    kinds = _measured_kinds(table) if label is None else [check_label(label)]
    how = "shuffled" if table.shuffled == "text" else "relabel"
    # "score " with a space: values may have a star after them, and the header must align.
    parts: list[Any] = [
        _grid(table, [("head", "score ", "95%", "uniform", how, _last_column(table), "also")], "dim")
    ]
    on_repeats = False
    for kind in kinds:
        parts += ["", Text.assemble((words(kind), COLOURS.get(kind, "")), f": {about(kind)}")]
        heads = clearest(table, kind)
        shown = heads if top is None else heads[:top]
        if shown:
            parts.append(_rows(table, kind, shown))
            on_repeats = on_repeats or any(best_score(row, kind)[1] for row in shown)
        if not heads:
            parts.append(Text(f"  {_highest(table, kind)}", style="dim"))
        elif len(shown) < len(heads):
            parts.append(Text(f"  and {len(heads) - len(shown)} more: --label {_option(kind)}", style="dim"))
    if label is None and IMPORTANCE in table.names:
        most = table.best(IMPORTANCE, len(table) if top is None else top)
        parts += ["", Text.assemble((IMPORTANCE, "bold"), f": {about(IMPORTANCE)}"), _important(table, most)]
    if label is None:
        parts += ["", *(Text(line) for line in _counts(table, key_texts or {}))]
    parts += ["", Text("\n".join(explain_columns(table, on_repeats)), style="dim")]
    return Group(*parts)


def clearest(table: HeadTable, label: str) -> list[HeadRow]:
    """The heads with a label, the one whose interval is furthest above uniform attention first."""

    def margin(row: HeadRow) -> float:
        score, _ = best_score(row, label)
        return score.low - score.null

    return sorted(table.where(label=label), key=margin, reverse=True)


def check_label(label: str) -> str:
    """The canonical name of a label; a ValueError lists the labels."""
    name = canonical_name(label)
    if name not in MIN_SCORES:
        raise ValueError(f"label: expected one of {', '.join(map(_option, MIN_SCORES))}, got {label!r}")
    return name


def _measured_kinds(table: HeadTable) -> list[str]:
    """The kinds that some head has a score for; of rare kinds, those that some head is labelled by."""
    names = {name for row in table for name in row.scores}
    labels = {label for row in table for label in row.labels}
    return [kind for kind in KINDS if {kind, kind + REPEATS} & names and (kind not in RARE or kind in labels)]


def _option(label: str) -> str:
    """A label as it is typed on a command line."""
    return words(label).replace(" ", "-")


def _last_column(table: HeadTable) -> str:
    """The header of the last column of numbers."""
    return IMPORTANCE if IMPORTANCE in table.names else "no sink"


def _important(table: HeadTable, heads: HeadTable) -> Any:
    """A line for each of the heads that matter most, with its 95% interval and its labels."""
    from rich.text import Text

    rows = []
    for row in heads:
        value, interval = importance_cells(row)
        labels = ", ".join(label_words(row, name) for name in row.labels[:2]) or "no label"
        about_head = f"({interval}) {labels}" if interval else labels
        rows.append((Text(escape(row.place)), *[""] * 4, Text(value, style="bold"), Text(about_head)))
    return _grid(table, rows)


def _rows(table: HeadTable, kind: str, heads: list[HeadRow]) -> Any:
    """A line for each head that has the label `kind`."""
    from rich.text import Text

    has_importance = IMPORTANCE in table.names  # instead of the score without the sink
    rows = []
    for row in heads:
        score, on_repeats = best_score(row, kind)
        also = [label_words(row, other) for other in row.labels if other != kind]
        if kind == "sink":
            also.insert(0, f"on token {row.sink_key}")
        elif kind in ("fixed_offset", "one_token"):
            also.insert(0, label_words(row, kind))
        last = importance_cells(row)[0] if has_importance else number(score.without_sink)
        cells = (
            Text(escape(row.place)),
            Text(number(score.value) + ("*" if on_repeats else " "), style="bold"),
            f"{number(score.low)}–{number(score.high)}",
            number(score.null),
            number(score.shuffled),
            last if kind != "sink" or has_importance else "",
            Text(", ".join(also)),
        )
        rows.append(cells)
    return _grid(table, rows)


def _grid(table: HeadTable, rows: list[tuple[Any, ...]], style: str = "") -> Any:
    """Rows under columns of fixed widths, so that the heads of all kinds are aligned."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False, style=style)
    places = max((len(row.place) for row in table), default=0)
    widths = (max(places, 4) + 2, 6, 9, 7, 8, len(_last_column(table)))
    for width, side in zip(widths, ("right", "right", "left", "right", "right", "right"), strict=True):
        grid.add_column(min_width=width, justify=side, no_wrap=True)  # type: ignore[arg-type]
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*row)
    return grid


def _highest(table: HeadTable, kind: str) -> str:
    """What to say of a kind that no head is of."""
    heads = [row for row in table if {kind, kind + REPEATS} & row.scores.keys()]
    if not heads:
        return "not measured"
    best: HeadRow = max(heads, key=lambda row: best_score(row, kind)[0].value)
    score: Score = best_score(best, kind)[0]
    return (
        f"no head; the highest score is {number(score.value)} "
        f"(head {escape(best.place)}, uniform {number(score.null)})"
    )


def _counts(table: HeadTable, key_texts: Mapping[int, str]) -> Iterator[str]:
    """The sinks by their key, and the heads without a label."""
    keys = Counter(row.sink_key for row in table.where(label="sink"))
    if keys:
        named = [
            f"{count} on token {key}" + (f" ({escape(key_texts[key])!r})" if key in key_texts else "")
            for key, count in keys.most_common(SINK_KEYS)
            if key is not None
        ]
        others = sum(keys.values()) - sum(count for _, count in keys.most_common(SINK_KEYS))
        if others:
            named.append(f"{others} on other tokens")
        verb = "head is a sink" if sum(keys.values()) == 1 else "heads are sinks"
        first, _, place = named[0].partition(" ")
        listed = ", ".join([f"{first} {verb} {place}", *named[1:]])
        yield f"{listed}: --label sink"
    plain = sum(not row.labels for row in table)
    if plain:
        yield f"{plain} {'head has' if plain == 1 else 'heads have'} no label: --all"
