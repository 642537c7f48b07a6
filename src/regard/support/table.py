"""`Table`: rows under named columns, to print, to show in a notebook and to save.

Every result that is a table describes its columns and rows: how wide they are, how HTML is escaped and how a
file is written is in this file alone. It knows plain values; it does not know what they are of.
"""

from __future__ import annotations

import csv
import html
import math
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.support.cell_output import bundle
from regard.support.files import atomic_write, check_target
from regard.support.imports import extra

MOST_ROWS = 64  # of a table in a notebook's cell
Row = TypeVar("Row")


class Column(NamedTuple):
    """A column: its name and how a value of it is printed."""

    name: str
    form: str | Callable[[Any], str] = ""
    """A format such as ".3f", or a function that returns the text of a value."""
    right: bool = False
    """Whether the text of a value stands at the right of the printed column."""
    width: int = 0
    """The least width when printed, in characters."""

    def text(self, value: Any) -> str:
        """Return the text of a value."""
        return self.form(value) if callable(self.form) else format(value, self.form)


class Table:
    """Rows of plain values under columns; a column is a `Column`, or only its name."""

    def __init__(self, columns: Iterable[Column | str], rows: Iterable[Sequence[Any]]) -> None:
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self.rows = list(rows)

    def lines(self, *, gap: str = "  ", indent: str = "", header: bool = True) -> list[str]:
        """Return the printed table, a line for its header and one for each row; `gap` is between columns."""
        cells = [[column.text(x) for column, x in zip(self.columns, row, strict=True)] for row in self.rows]
        if header:
            cells.insert(0, [column.name for column in self.columns])
        widths = [
            max(column.width, *(len(row[i]) for row in cells)) if cells else 0
            for i, column in enumerate(self.columns)
        ]
        return [
            (indent + gap.join(map(_pad, row, widths, self.columns))).rstrip() if any(row) else ""
            for row in cells
        ]

    def html(self, caption: str = "") -> str:
        """Return the table for a notebook; rows beyond the first `MOST_ROWS` are counted instead of shown.

        A number without a form of its own is set right, everything else left.
        """
        head = "".join(f"<th>{html.escape(column.name)}</th>" for column in self.columns)
        shown = self.rows[:MOST_ROWS]
        body = "".join(f"<tr>{''.join(map(_html_cell, self.columns, row))}</tr>" for row in shown)
        more = f" The first {MOST_ROWS} of {len(self.rows):,} rows." if len(self.rows) > MOST_ROWS else ""
        below = f"<p>{html.escape(caption)}{more}</p>" if caption or more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"

    def output(self, text: str, caption: str = "") -> dict[str, str]:
        """Return what `_repr_mimebundle_` gives of a result: `text`, and this table as HTML."""
        return bundle(text, self.html(caption))

    def by_column(self) -> dict[str, list[Any]]:
        """Return the values of each column by its name."""
        return {column.name: [row[i] for row in self.rows] for i, column in enumerate(self.columns)}

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each row."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.by_column())

    def save(self, path: str | PathLike[str], *, line_end: str = "\r\n", nan: object = "") -> None:
        """Write the values to `path`, atomically, as .csv or .parquet; `nan` stands for NaN in CSV."""
        with atomic_write(Path(path)) as file:
            if Path(path).suffix == ".parquet":
                _pyarrow().parquet.write_table(_pyarrow().table(self.by_column()), file)
                return
            # newline="": csv writes its own line ends.
            with file.open("w", encoding="utf-8", newline="") as opened:
                writer = csv.writer(opened, lineterminator=line_end)
                writer.writerow(column.name for column in self.columns)
                writer.writerows(
                    [nan if isinstance(x, float) and math.isnan(x) else x for x in row] for row in self.rows
                )


def check_writable(path: Path) -> None:
    """Raise ValueError, before any work is done, if a table cannot be written to a file."""
    check_target("path", path, (".json", ".csv", ".parquet"))
    if path.suffix == ".parquet":
        _pyarrow()


def sort_rows(rows: Iterable[Row], value: Callable[[Row], float]) -> list[Row]:
    """Return rows from the largest value to the smallest; those whose value is NaN come last."""

    def key(row: Row) -> float:
        number = value(row)
        # NaN would make the order of sorted undefined.
        return -math.inf if math.isnan(number) else number

    return sorted(rows, key=key, reverse=True)


def find_head(places: Iterable[tuple[int | str, int]], place: object, expected: str) -> int:
    """Return the number of a (layer, head) among others; KeyError says what was `expected`.

    Layers are compared as text: a key is a number or a name such as "decoder.3", and users write either.
    """
    if isinstance(place, tuple) and len(place) == 2:
        for number, (key, head) in enumerate(places):
            if str(key) == str(place[0]) and head == place[1]:
                return number
    raise KeyError(f"head: expected {expected}, got {place!r}")


def _pad(text: str, width: int, column: Column) -> str:
    return text.rjust(width) if column.right else text.ljust(width)


def _html_cell(column: Column, value: object) -> str:
    # bool is a subclass of int, and a column of True and False reads as words, set left.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not column.form
    side = "right" if is_number else "left"
    return f'<td style="text-align:{side}">{html.escape(column.text(value))}</td>'


def _pyarrow() -> Any:
    with extra("parquet", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow
