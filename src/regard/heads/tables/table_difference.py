"""The difference of two tables of heads: of every score, with an interval, and of the labels.

This file knows rows of numbers, as `table` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.heads.tables.score_words import title
from regard.support.cell_output import PrintedOutput
from regard.support.characters import escape
from regard.support.table import Table, find_head, sort_rows

if TYPE_CHECKING:
    from regard.heads.tables.table import HeadRow, HeadTable, Score

SHOWN = 20  # heads in the printed difference


class ScoreDifference(NamedTuple):
    """The change of one score of one head; NaN where one of the two is not defined."""

    before: float
    after: float
    difference: float
    """`after` − `before`."""
    low: float
    high: float
    """The ends of a 95% interval of the difference."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class ComparedRow:
    """One head in two tables."""

    before: HeadRow
    """The head in the first table."""
    after: HeadRow
    """The head in the second."""
    scores: dict[str, ScoreDifference]
    """The change of each score that both have."""

    @property
    def place(self) -> str:
        """`3.5`: layer 3, head 5."""
        return self.before.place

    @property
    def gained(self) -> tuple[str, ...]:
        """The labels that it has only in the second table."""
        return tuple(label for label in self.after.labels if label not in self.before.labels)

    @property
    def lost(self) -> tuple[str, ...]:
        """The labels that it has only in the first table."""
        return tuple(label for label in self.before.labels if label not in self.after.labels)


@dataclass(frozen=True)
class TableDifference(PrintedOutput):
    """Every head of two tables, with the change of its scores and labels. Made by `table.compare(other)`.

    The interval of a difference is computed from the intervals of both scores as if they were independent:
    each end is as far from the difference as √(a² + b²), where a and b are how far the ends of the two
    intervals are from their scores. If both tables are of the same texts, it is wider than it need be.
    """

    rows: list[ComparedRow]
    """The heads that both tables have."""
    left_out: list[str]
    """The heads that only one table has, as `3.5`."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ComparedRow]:
        return iter(self.rows)

    def __getitem__(self, place: int | tuple[int | str, int]) -> ComparedRow:
        """A row by its number, or a head by layer and head: `difference[3, 5]`."""
        if not isinstance(place, int):
            heads = ((row.before.key, row.before.head) for row in self.rows)
            place = find_head(heads, place, "a layer and a head of both tables")
        return self.rows[place]

    @property
    def changed(self) -> TableDifference:
        """Only the heads that have gained or lost a label."""
        return self._with(row for row in self.rows if row.gained or row.lost)

    def sorted(self, name: str) -> TableDifference:
        """The heads from the largest change of the score `name`, in either direction, to the smallest."""
        if not any(name in row.scores for row in self.rows):
            names = dict.fromkeys(score for row in self.rows for score in row.scores)
            raise ValueError(f"name: expected one of {', '.join(names)}, got {name!r}")
        return self._with(
            sort_rows(
                self.rows, lambda row: abs(row.scores[name].difference) if name in row.scores else math.nan
            )
        )

    def _with(self, rows: Iterable[ComparedRow]) -> TableDifference:
        return TableDifference(list(rows), self.left_out)

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each head and score."""
        records = [
            (row.before.key, row.before.head, name, *score)
            for row in self.rows
            for name, score in row.scores.items()
        ]
        return Table(("layer", "head", "score", *ScoreDifference._fields), records).to_pandas()

    def __repr__(self) -> str:
        return f"TableDifference({len(self)} heads, {len(self.changed)} with other labels)"

    def __str__(self) -> str:
        """The heads whose labels changed, with the scores behind them."""
        lines = [repr(self)]
        for row in self.changed.rows[:SHOWN]:
            for sign, labels in (("+", row.gained), ("−", row.lost)):
                for label in labels:
                    score = row.scores.get(label)
                    line = f"{escape(row.place):>6} {sign} {title(label)}"
                    if score is not None:
                        interval = f"({score.low:+.2f} to {score.high:+.2f})"
                        line += f": {score.before:.2f} → {score.after:.2f} {interval}"
                    lines.append(line)
        if len(self.changed) > SHOWN:
            lines.append(f"… and {len(self.changed) - SHOWN} more")
        return "\n".join(lines)


def subtract(after: HeadTable, before: HeadTable) -> TableDifference:
    """The difference of two tables, head by head; ValueError if they have no head in common."""
    first = {row.place: row for row in before}
    second = {row.place: row for row in after}
    shared = [place for place in first if place in second]
    if not shared:
        raise ValueError(
            f"other: expected a table with some of the same heads, got {len(second)} heads, none of which is "
            f"among the {len(first)} of this one"
        )
    rows = [
        ComparedRow(
            first[place],
            second[place],
            {
                name: _difference(score, second[place].scores[name])
                for name, score in first[place].scores.items()
                if name in second[place].scores
            },
        )
        for place in shared
    ]
    left_out = [place for place in (*first, *second) if (place in first) != (place in second)]
    return TableDifference(rows, left_out)


def _difference(before: Score, after: Score) -> ScoreDifference:
    """The change of a score, with the interval that two independent intervals give (Zou and Donner 2008)."""
    difference = after.value - before.value
    low = difference - math.hypot(after.value - after.low, before.high - before.value)
    high = difference + math.hypot(after.high - after.value, before.value - before.low)
    return ScoreDifference(before.value, after.value, difference, low, high)
