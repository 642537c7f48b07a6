"""`HeadTable`: the scores and labels of every head, to print, sort, filter and save.

This file knows rows of numbers; it knows neither maps nor how they are scored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from regard.heads.labels import sort_labels
from regard.heads.tables.head_sentence import describe_head, label_title
from regard.heads.tables.score_words import canonical_name
from regard.support.files import (
    SurveyFileError,
    atomic_write,
    check_type,
    get_field,
    parse_json,
    read_text,
    shorten,
)
from regard.support.table import Table, check_writable, find_head, sort_rows

if TYPE_CHECKING:
    from regard.heads.tables.table_difference import TableDifference


class Score(NamedTuple):
    """One score of one head; NaN where it is not defined, or not known."""

    value: float
    null: float
    """Of uniform attention to the visible keys."""
    shuffled: float
    """On shuffled tokens: `HeadTable.shuffled` says how."""
    low: float
    high: float
    """The ends of a 95% interval over texts, or over blocks of a single text."""
    without_sink: float
    """Of rows renormalised without the sink's column."""


@dataclass(frozen=True)
class HeadRow:
    """The scores and labels of one head, which the numbers of its layer and head in the model identify."""

    layer: int
    head: int
    kv_head: int
    labels: tuple[str, ...]
    """The labels that it earns, the most distinct one first."""
    sink_key: int | None
    """The key that receives the most attention on average, over all texts."""
    scores: dict[str, Score]
    stack: str = ""
    """The stack of the layer, "encoder", "decoder" or "cross"; "" where the model has one."""
    offset: int | None = None
    """The distance back, two tokens or more, that receives the most attention on average."""
    token: int | None = None
    """The token id that receives the most attention, wherever it stands."""
    token_text: str = ""
    """The text of that token, where it is known."""

    @property
    def label(self) -> str | None:
        """The first label, None if the head has none."""
        return self.labels[0] if self.labels else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: what the head does, and its scores."""
        from regard.heads.tables.table_html import row_output

        return row_output(self)

    @property
    def sentence(self) -> str:
        """One sentence that says what the head does: its clearest score beside that of uniform attention."""
        return describe_head(self)

    @property
    def key(self) -> str:
        """The key of the layer: "3", or "decoder.3" where the model has several stacks."""
        return f"{self.stack}.{self.layer}" if self.stack else str(self.layer)

    @property
    def place(self) -> str:
        """`3.5`: layer 3, head 5."""
        return f"{self.key}.{self.head}"


@dataclass(frozen=True)
class HeadTable:
    """Every head of a model with its scores. A sequence of `HeadRow`s; prints as a table."""

    rows: list[HeadRow]
    texts: int = 1
    tokens: int = 0
    shuffled: Literal["text", "labels"] = "labels"
    """Whether `Score.shuffled` is of the model reading a shuffled text, or of relabelled tokens only."""
    model: str = ""

    def __len__(self) -> int:
        """The number of heads."""
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadRow]:
        """The rows."""
        return iter(self.rows)

    def __getitem__(self, place: int | tuple[int | str, int]) -> HeadRow:
        """A row by its number, or a head by layer and head: `table[3, 5]`, `table["decoder.3", 5]`."""
        if isinstance(place, int):
            return self.rows[place]
        keys = ", ".join(dict.fromkeys(row.key for row in self.rows))
        heads = ((row.key, row.head) for row in self.rows)
        return self.rows[find_head(heads, place, f"a layer ({keys}) and a head of the table")]

    @property
    def names(self) -> list[str]:
        """The names of all scores."""
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))

    def where(
        self, *, label: str | None = None, layer: int | str | None = None, labelled: bool = False
    ) -> HeadTable:
        """Only the heads with a `label`, those of a `layer`, or, if `labelled`, those that have any label.

        A layer is a number, in any stack, or a key such as "decoder.3".

        >>> HeadTable([]).where(label="induction")
        HeadTable(0 heads)
        """
        label = None if label is None else canonical_name(label)
        return self._with(
            row
            for row in self.rows
            if (label is None or label in row.labels)
            and (layer is None or layer in (row.layer, row.key))
            and (row.labels or not labelled)
        )

    def best(self, name: str, n: int = 5) -> HeadTable:
        """The n heads with the highest score `name`, highest first."""
        return self._with(self.sorted(name).rows[:n])

    def sorted(self, name: str) -> HeadTable:
        """The heads from the highest score `name` to the lowest; those without the score come last."""
        name = canonical_name(name)
        if name not in self.names:
            raise ValueError(f"name: expected one of {', '.join(self.names)}, got {name!r}")
        return self._with(sort_rows(self.rows, lambda row: row.scores.get(name, UNDEFINED).value))

    def compare(self, other: HeadTable) -> TableDifference:
        """How the heads of an `other` table, of another model, checkpoint or text, differ from these.

        The result has the change of every score, with a 95% interval from both intervals, and the heads
        whose labels changed.
        """
        from regard.heads.tables.table_difference import subtract

        return subtract(other, self)

    def join(self, other: HeadTable) -> HeadTable:
        """This table with the scores and labels of `other` beside its own, head by head.

        `other` is a table of the same model: of `regard.heads.needle`, of `regard.importance`, or of another
        text. A score that both have is that of `other`.
        """
        rows = {(row.key, row.head): row for row in self.rows}
        for row in other.rows:
            own = rows.get((row.key, row.head))
            if own is None:
                raise ValueError(
                    f"other: expected a table of the same heads, got one with the head {row.place}"
                )
            scores = own.scores | row.scores
            labels = tuple(dict.fromkeys([*own.labels, *row.labels]))
            if labels != own.labels:
                labels = sort_labels(labels, scores)
            rows[row.key, row.head] = replace(own, labels=labels, scores=scores)
        return self._with(rows.values())

    def with_token_texts(self, text_of: Callable[[int], str]) -> HeadTable:
        """This table with the texts of tokens that heads attend to; `text_of` gives that of a token id."""
        return self._with(
            row if row.token is None else replace(row, token_text=text_of(row.token)) for row in self.rows
        )

    def _with(self, rows: Iterable[HeadRow]) -> HeadTable:
        return HeadTable(list(rows), self.texts, self.tokens, self.shuffled, self.model)

    def to_data(self) -> list[dict[str, Any]]:
        """Plain data, a dictionary for each head; None stands for NaN."""
        return [
            {
                "stack": row.stack,
                "layer": row.layer,
                "head": row.head,
                "kv_head": row.kv_head,
                "label": row.label,
                "labels": list(row.labels),
                "sentence": row.sentence,
                "label_words": [label_title(row, name) for name in row.labels],
                "sink_key": row.sink_key,
                "offset": row.offset,
                "token": row.token,
                "token_text": row.token_text,
                "shuffled": self.shuffled,
                "scores": {
                    name: {part: None if math.isnan(x) else x for part, x in score._asdict().items()}
                    for name, score in row.scores.items()
                },
            }
            for row in self.rows
        ]

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """The rows as JSON text, which is also written to a file if `path` is given.

        >>> HeadTable([]).to_json()
        '[]'
        """
        text = json.dumps(self.to_data(), allow_nan=False, ensure_ascii=False)
        if path is not None:
            with atomic_write(Path(path)) as file:
                file.write_text(text + "\n", encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, text: str | PathLike[str]) -> HeadTable:
        """Read the table from JSON text, or from a file; a `SurveyFileError` names what is wrong with it."""
        name = "text"
        # A text of JSON begins with a bracket; a path never does in practice.
        if not isinstance(text, str) or not text.lstrip().startswith("["):
            name, text = str(text), read_text(Path(text), SurveyFileError, "a table of heads")
        try:
            data = [check_type("rows", row, dict) for row in check_type("rows", parse_json(text), list)]
            rows = [_row(row) for row in data]
        except ValueError as error:
            raise SurveyFileError(f"{name}: expected the JSON of a table of heads: {error}") from None
        # An empty table does not say.
        how: Literal["text", "labels"] = "text" if data and data[0].get("shuffled") == "text" else "labels"
        return cls(rows, shuffled=how)

    def columns(self) -> dict[str, list[Any]]:
        """The columns by name: a score's value under its name, its parts under `name_null` and so on."""
        return self._values().by_column()

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each head and the columns of `columns()`."""
        # Int64 of pandas has missing values; a column with None would otherwise hold floats.
        whole = {name: "Int64" for name in ("sink_key", "offset", "token")}
        return self._values().to_pandas().astype(whole)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table to `path`, atomically, in the format of its suffix: .json, .csv or .parquet."""
        path = Path(path)
        check_writable(path)
        if path.suffix == ".json":
            self.to_json(path)
        else:
            self._values().save(path)

    def _values(self) -> Table:
        """The values that a file or a DataFrame holds, a row for each head."""
        about = ("stack", "layer", "head", "kv_head", "label", "labels", "sink_key", "offset", "token")
        parts = [f"{name}{'' if x == 'value' else f'_{x}'}" for name in self.names for x in Score._fields]
        rows = [
            (
                *(" ".join(row.labels) if name == "labels" else getattr(row, name) for name in about),
                *(x for name in self.names for x in row.scores.get(name, UNDEFINED)),
            )
            for row in self.rows
        ]
        return Table([*about, *parts], rows)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: what each head does, with its scores, in a row."""
        from regard.heads.tables.table_html import table_output

        return table_output(self)

    def __repr__(self) -> str:
        return f"HeadTable({len(self)} heads)"

    def __str__(self) -> str:
        from regard.heads.tables.table_text import full_text

        return full_text(self)

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(str(self))


UNDEFINED = Score(*[math.nan] * len(Score._fields))


def split_key(key: str) -> tuple[str, int]:
    """The stack and the number of a layer's key.

    >>> split_key("3"), split_key("decoder.3")
    (('', 3), ('decoder', 3))
    """
    stack, _, number = key.rpartition(".")
    if not number.isdecimal():
        raise ValueError(f'keys: expected the number of a layer, as "3" or "decoder.3", got {shorten(key)}')
    return stack, int(number)


def _row(data: dict[str, Any]) -> HeadRow:
    """A row from JSON; a ValueError names the field that is wrong."""
    scores = {name: _score(name, parts) for name, parts in get_field(data, "scores", dict).items()}
    labels = tuple(check_type("labels", label, str) for label in get_field(data, "labels", list))
    for label in labels:
        if not {label, f"{label}_on_repeats"} & scores.keys():
            raise ValueError(f"labels: expected names of its scores, got {shorten(label)}")
    return HeadRow(
        layer=get_field(data, "layer", int),
        head=get_field(data, "head", int),
        kv_head=get_field(data, "kv_head", int),
        labels=labels,
        sink_key=None if data.get("sink_key", "") is None else get_field(data, "sink_key", int),
        scores=scores,
        stack=get_field(data, "stack", str),
        offset=None if data.get("offset", "") is None else get_field(data, "offset", int),
        token=None if data.get("token", "") is None else get_field(data, "token", int),
        token_text=get_field(data, "token_text", str),
    )


def _score(name: str, parts: Any) -> Score:
    """A score from JSON, in which None stands for NaN."""
    parts = check_type(name, parts, dict)
    values = {part: parts.get(part) for part in Score._fields}
    return Score(
        **{part: math.nan if x is None else check_type(part, x, float) for part, x in values.items()}
    )
