"""A table of heads for the terminal: every head in its order, or the clearest few of each kind.

A large model has hundreds of heads, and most of them are sinks: these are counted in the summary. Both fit 80
columns. This file chooses, counts and words; `support.table` aligns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from regard.heads.labels import MIN_SCORES, REPEATS
from regard.heads.tables.head_sentence import best_score, label_words
from regard.heads.tables.score_words import SCORE_WORDS, about, canonical_name, title
from regard.support.characters import escape
from regard.support.table import Column, Table

if TYPE_CHECKING:
    from regard.heads.tables.table import HeadRow, HeadTable

IMPORTANCE = "importance"
KINDS = tuple(label for label in MIN_SCORES if label != "sink")
"""The labels in the order of the summary; sinks, which most heads are, are counted after them."""
RARE = ("fixed_offset", "one_token")
SINK_KEYS = 2  # the most keys of sinks that are named
WIDTH = 80


def full_text(table: HeadTable) -> str:
    """Every head, under its key/value head: a line for each label, one for a head that has none."""
    has_importance = IMPORTANCE in table.names
    last = (IMPORTANCE, "95%") if has_importance else ("no sink", "entropy")
    names = ("layer", "kv", "head", "does", "score", "95%", "uniform", _shuffled(table), *last)
    columns = [Column(name, right=name not in ("does", "95%")) for name in names]
    rows: list[Sequence[str]] = []
    before: HeadRow | None = None
    for row in table:
        if before is not None and row.key != before.key:
            rows.append([""] * len(columns))
        # Layer and key/value head are printed where they change.
        is_new = before is None or row.key != before.key
        place = (
            row.key if is_new else "",
            str(row.kv_head) if is_new or (before and row.kv_head != before.kv_head) else "",
            str(row.head),
        )
        before = row
        entropy = row.scores.get("normalised_entropy")
        of_head = importance_cells(row) if has_importance else ("", number(entropy.value) if entropy else "")
        if not row.labels:
            rows.append((*place, "–", *[""] * 4, *of_head))
        for name in row.labels:
            label = label_words(row, name) + ("*" if best_score(row, name)[1] else "")
            score, *cells = _score_cells(row, name)
            if not has_importance and name != "sink":
                of_head = (number(best_score(row, name)[0].without_sink), of_head[1])
            rows.append((*place, label, score.rstrip("* "), *cells, *of_head))
            place, of_head = ("", "", ""), ("", "")
    return escape("\n".join(Table(columns, rows).lines(gap=" ")))


def summary_text(
    table: HeadTable,
    *,
    top: int | None = 3,
    label: str | None = None,
    key_texts: Mapping[int, str] | None = None,
) -> str:
    """The clearest `top` heads of each kind, all of them if `top` is None, and the sinks as a count.

    `label` restricts it to one kind. `key_texts` are the texts of tokens by their positions, which are shown
    beside the keys of sinks.
    """
    has_importance = IMPORTANCE in table.names  # instead of the score without the sink
    last = IMPORTANCE if has_importance else "no sink"
    # "score " with a space: values may have a star after them, and the header must align.
    lines = _grid(table, last, [("head", "score ", "95%", "uniform", _shuffled(table), last, "also")])
    on_repeats = False
    for kind in _measured_kinds(table) if label is None else [check_label(label)]:
        lines += ["", *wrap(f"{words(kind)}: {about(kind)}", WIDTH)]
        heads = clearest(table, kind)
        shown = heads if top is None else heads[:top]
        on_repeats = on_repeats or any(best_score(row, kind)[1] for row in shown)
        lines += _grid(table, last, [_kind_cells(row, kind, has_importance) for row in shown])
        if not heads:
            lines.append(f"  {_highest(table, kind)}")
        elif len(shown) < len(heads):
            lines.append(f"  and {len(heads) - len(shown)} more: --label {_option(kind)}")
    if label is None and has_importance:
        most = table.best(IMPORTANCE, len(table) if top is None else top)
        lines += ["", f"{IMPORTANCE}: {about(IMPORTANCE)}"]
        lines += _grid(table, last, [_importance_row(row) for row in most])
    if label is None:
        lines += ["", *_counts(table, key_texts or {})]
    return escape("\n".join([*lines, "", *explain_columns(table, on_repeats)]))


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


def caption(table: HeadTable) -> str:
    """An explanation of the labels in the table and of the columns, in a line each."""
    labels = {name for row in table for name in row.labels}
    lines = [
        part
        for score in SCORE_WORDS
        if score.name in labels
        for part in wrap(f"{score.title}: {about(score.name)}", WIDTH)
    ]
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
    return [part for line in lines for part in wrap(line, WIDTH)]


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


def words(name: str) -> str:
    """Return a score's title for the table, such as "previous token" or "self"."""
    return title(name.removesuffix(REPEATS))


def _shuffled(table: HeadTable) -> str:
    """The name of the column with scores on shuffled tokens."""
    return "shuffled" if table.shuffled == "text" else "relabel"


def _score_cells(row: HeadRow, name: str) -> tuple[str, str, str, str]:
    """The score behind a label with a star or a space after it, its interval and its baselines."""
    score, on_repeats = best_score(row, name)
    value = number(score.value) + ("*" if on_repeats else " ")
    return value, f"{number(score.low)}–{number(score.high)}", number(score.null), number(score.shuffled)


def _grid(table: HeadTable, last: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under columns of fixed widths, so that the heads of all kinds are aligned."""
    places = max((len(row.place) for row in table), default=0)
    widths = (max(places, 4) + 2, 6, 9, 7, 8, len(last), 0)
    columns = [Column("", right=i not in (2, 6), width=width) for i, width in enumerate(widths)]
    lines = Table(columns, rows).lines(gap=" ", header=False)
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]


def _kind_cells(row: HeadRow, kind: str, has_importance: bool) -> tuple[str, ...]:
    """The line of a head that has the label `kind`."""
    also = [label_words(row, other) for other in row.labels if other != kind]
    if kind == "sink":
        also.insert(0, f"on token {row.sink_key}")
    elif kind in RARE:
        also.insert(0, label_words(row, kind))
    last = "" if kind == "sink" else number(best_score(row, kind)[0].without_sink)
    last = importance_cells(row)[0] if has_importance else last
    return (row.place, *_score_cells(row, kind), last, ", ".join(also))


def _importance_row(row: HeadRow) -> tuple[str, ...]:
    """The line of a head that matters, with its 95% interval and its labels."""
    value, interval = importance_cells(row)
    labels = ", ".join(label_words(row, name) for name in row.labels[:2]) or "no label"
    return (row.place, *[""] * 4, value, f"({interval}) {labels}" if interval else labels)


def _measured_kinds(table: HeadTable) -> list[str]:
    """The kinds that some head has a score for; of rare kinds, those that some head is labelled by."""
    labels = {label for row in table for label in row.labels}
    return [
        kind
        for kind in KINDS
        if {kind, kind + REPEATS} & {*table.names} and (kind not in RARE or kind in labels)
    ]


def _option(label: str) -> str:
    """A label as it is typed on a command line."""
    return words(label).replace(" ", "-")


def _highest(table: HeadTable, kind: str) -> str:
    """What to say of a kind that no head is of."""
    heads = [row for row in table if {kind, kind + REPEATS} & row.scores.keys()]
    if not heads:
        return "not measured"
    best = max(heads, key=lambda row: best_score(row, kind)[0].value)
    score = best_score(best, kind)[0]
    beside = f"(head {best.place}, uniform {number(score.null)})"
    return f"no head; the highest score is {number(score.value)} {beside}"


def _counts(table: HeadTable, key_texts: Mapping[int, str]) -> Iterator[str]:
    """The sinks by their key, and the heads without a label."""
    keys = Counter(row.sink_key for row in table.where(label="sink"))
    if keys:
        most = keys.most_common(SINK_KEYS)
        named = [
            f"{count} on token {key}" + (f" ({key_texts[key]!r})" if key in key_texts else "")
            for key, count in most
            if key is not None
        ]
        if others := keys.total() - sum(count for _, count in most):
            named.append(f"{others} on other tokens")
        first, _, place = named[0].partition(" ")
        verb = "head is a sink" if keys.total() == 1 else "heads are sinks"
        yield f"{', '.join([f'{first} {verb} {place}', *named[1:]])}: --label sink"
    if plain := sum(not row.labels for row in table):
        yield f"{plain} {'head has' if plain == 1 else 'heads have'} no label: --all"
