"""`HeadTable`: what every head of a model does, in rows that print, sort and travel as JSON or DataFrame."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.atomic import atomic_write
from regard.extras import extra


class Score(NamedTuple):
    """One score of one head; NaN where the text gave no occasion, or no way to tell."""

    value: float
    null: float
    """Of a head that looks alike at everything it can see."""
    shuffled: float
    """On shuffled tokens: `HeadTable.shuffled` says how."""
    low: float
    high: float
    """The ends of a 95% interval over texts, or over blocks of a single text."""
    without_sink: float
    """Over the rest of each row, the sink's column left out."""


@dataclass(frozen=True)
class HeadRow:
    """What one head does. `labels` are those that it earns; the first is what it is called."""

    layer: int | str
    """The layer's number, or "decoder.3" where the model has several stacks."""
    head: int
    kv_head: int
    labels: tuple[str, ...]
    sink_key: int | None
    """The key that gets most, in most texts."""
    scores: dict[str, Score]

    @property
    def label(self) -> str | None:
        return self.labels[0] if self.labels else None

    @property
    def place(self) -> str:
        """`3.5`: layer 3, head 5."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True)
class HeadTable:
    """Every head of a model with its scores. A sequence of `HeadRow`s; prints as a table."""

    rows: list[HeadRow]
    texts: int = 1
    tokens: int = 0
    shuffled: Literal["text", "labels"] = "labels"
    """What `Score.shuffled` is of: the model reading a shuffled text, or only the tokens' labels shuffled."""
    model: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.rows)

    def __getitem__(self, place: int | tuple[int | str, int]) -> HeadRow:
        """A row by its number, or a head by layer and head: `table[3, 5]`."""
        if isinstance(place, int):
            return self.rows[place]
        layer, head = place
        for row in self.rows:
            if str(row.layer) == str(layer) and row.head == head:
                return row
        raise KeyError(f"head: expected a layer and a head of the table, got {place!r}")

    @property
    def names(self) -> list[str]:
        """The scores that some head has."""
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))

    def where(
        self, *, label: str | None = None, layer: int | str | None = None, labelled: bool = False
    ) -> HeadTable:
        """Only the heads that earn a label, those of a layer, or those that have any label.

        >>> HeadTable([]).where(label="induction")
        HeadTable(0 heads)
        """
        label = None if label is None else _spelled(label)
        return self._with(
            row
            for row in self.rows
            if (label is None or label in row.labels)
            and (layer is None or str(row.layer) == str(layer))
            and (row.labels or not labelled)
        )

    def best(self, name: str, n: int = 5) -> HeadTable:
        """The n heads that score highest, highest first."""
        return self._with(self.sorted(name).rows[:n])

    def sorted(self, name: str) -> HeadTable:
        """From the highest score to the lowest; heads that have none come last."""
        name = self._known(name)

        def height(row: HeadRow) -> float:
            value = row.scores[name].value if name in row.scores else math.nan
            return -math.inf if math.isnan(value) else value

        return self._with(sorted(self.rows, key=height, reverse=True))

    def _known(self, name: str) -> str:
        name = _spelled(name)
        if name not in self.names:
            raise ValueError(f"name: expected one of {', '.join(self.names)}, got {name!r}")
        return name

    def _with(self, rows: Iterable[HeadRow]) -> HeadTable:
        return HeadTable(list(rows), self.texts, self.tokens, self.shuffled, self.model)

    def to_data(self) -> list[dict[str, Any]]:
        """Plain data, a row a head; None stands for NaN."""
        return [
            {
                "layer": row.layer,
                "head": row.head,
                "kv_head": row.kv_head,
                "label": row.label,
                "labels": list(row.labels),
                "sink_key": row.sink_key,
                "shuffled": self.shuffled,
                "scores": {
                    name: {part: _plain(x) for part, x in score._asdict().items()}
                    for name, score in row.scores.items()
                },
            }
            for row in self.rows
        ]

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """The rows as JSON text, written to a file as well if one is named.

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
        """The table of a JSON text, or of a file that holds one."""
        if not isinstance(text, str) or not text.lstrip().startswith("["):
            text = Path(text).read_text(encoding="utf-8")
        try:
            given = json.loads(text)
            rows = [
                HeadRow(
                    row["layer"],
                    row["head"],
                    row["kv_head"],
                    tuple(row["labels"]),
                    row["sink_key"],
                    {name: _score(parts) for name, parts in row["scores"].items()},
                )
                for row in given
            ]
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"text: expected the JSON of a table of heads: {error!r}") from None
        how: Literal["text", "labels"] = "text" if given and given[0].get("shuffled") == "text" else "labels"
        return cls(rows, shuffled=how)

    def columns(self) -> dict[str, list[Any]]:
        """Column by column: a score's value under its name, its parts under `name_null` and so on."""
        found: dict[str, list[Any]] = {
            "layer": [row.layer for row in self.rows],
            "head": [row.head for row in self.rows],
            "kv_head": [row.kv_head for row in self.rows],
            "label": [row.label for row in self.rows],
            "labels": [" ".join(row.labels) for row in self.rows],
            "sink_key": [row.sink_key for row in self.rows],
        }
        for name in self.names:
            for part in Score._fields:
                column = name if part == "value" else f"{name}_{part}"
                found[column] = [getattr(row.scores.get(name, NOTHING), part) for row in self.rows]
        return found

    def to_pandas(self) -> Any:
        """A DataFrame with a row a head."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.columns()).astype({"sink_key": "Int64"})

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table, atomically, as what the file's name ends with: .json, .csv or .parquet."""
        path = Path(path)
        check_writable(path)
        if path.suffix == ".json":
            self.to_json(path)
            return
        with atomic_write(path) as file:
            if path.suffix == ".csv":
                columns = self.columns()
                with file.open("w", encoding="utf-8", newline="") as opened:
                    writer = csv.writer(opened)
                    writer.writerow(columns)
                    writer.writerows([_cell(x) for x in row] for row in zip(*columns.values(), strict=True))
            else:
                _pyarrow().parquet.write_table(_pyarrow().table(self.columns()), file)

    def __repr__(self) -> str:
        return f"HeadTable({len(self)} heads)"

    def __str__(self) -> str:
        from regard.heads.table_text import printed

        return printed(self)

    def __rich__(self) -> Any:
        from regard.heads.table_text import rendered

        return rendered(self)


NOTHING = Score(*[math.nan] * len(Score._fields))


def check_writable(path: Path) -> None:
    """ValueError, before any work is done, if a table cannot be written there."""
    if path.suffix not in (".json", ".csv", ".parquet"):
        raise ValueError(f"expected a file that ends with .json, .csv or .parquet, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"expected a file in a folder that exists, got {path}: make {path.parent}")
    if path.suffix == ".parquet":
        _pyarrow()


def _pyarrow() -> Any:
    with extra("parquet", "a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _spelled(name: str) -> str:
    """A score by the words that people use for it: "previous token", "self"."""
    name = name.strip().lower().replace(" ", "_").replace("-", "_")
    return {"self": "itself", "previous": "previous_token"}.get(name, name)


def _plain(x: float) -> float | None:
    return None if math.isnan(x) else x


def _cell(x: Any) -> Any:
    return "" if x is None or (isinstance(x, float) and math.isnan(x)) else x


def _score(parts: dict[str, float | None]) -> Score:
    found = {name: parts.get(name) for name in Score._fields}
    return Score(**{name: math.nan if x is None else x for name, x in found.items()})
