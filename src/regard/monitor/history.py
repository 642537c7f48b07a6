"""The history of a monitor: a record for each step that was listened to, also as a file of JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from regard.support.cell_output import PrintedOutput
from regard.support.files import RunFileError, naming_errors
from regard.support.json_lines import read_lines
from regard.support.plain_data import read_record
from regard.support.table import Column, Table

FORMAT = "regard.monitor 1"
MEASURES = (
    *("max_score", "entropy", "relative_entropy", "sink", "sink_key", "min_lse", "max_lse", "distance"),
    *("across", "padding", "gate", "q_norm", "k_norm"),
)
"""The numbers of every head. Means over rows, except for scores, lse and norms, which are extremes."""


@dataclass(frozen=True)
class HeardLayer:
    """What the heads of one layer did at one step."""

    name: str
    """The layer's module in the model."""
    certified: bool
    problem: str
    """Why it is not certified; "" if it is."""
    values: dict[str, list[float | None]]
    """By measure, a number for each head.

    None where no sampled row counts, where the batch does not say what is padding or which documents it has,
    where the layer has no sink logits, and where a number is not finite.
    """

    @property
    def num_heads(self) -> int:
        """How many heads were read; 0 for a layer without a softmax."""
        return max((len(row) for row in self.values.values()), default=0)


class HeardLayers(dict[str, HeardLayer]):
    """The layers of a reading by their keys, "3" or "decoder.3"; the number of a layer serves as well."""

    def __missing__(self, key: object) -> HeardLayer:
        if isinstance(key, int) and str(key) in self:
            return self[str(key)]
        heard = ", ".join(self) or "none"
        raise KeyError(f"layer {key!r} was not read at this step, which read {heard}: layers may take turns")


@dataclass(frozen=True)
class StepRecord:
    """What a monitor heard at one step."""

    step: int
    rows: tuple[int, ...]
    """The first and the last of the sampled rows, and their number."""
    tokens: tuple[int, ...]
    """The shape of the batch that was read: texts and tokens, of one rank."""
    layers: HeardLayers
    seconds: float = 0.0
    """What listening added to the step: the time after the forward pass."""
    alarms: list[str] = field(default_factory=list)
    run: str = ""
    """The run's name, which tells several runs in one file apart: when its monitor was made."""

    def line(self) -> dict[str, Any]:
        """The record as a line of its file holds it."""
        return {"format": FORMAT, **asdict(self)}


def parse_record(data: dict[str, Any]) -> StepRecord:
    """Read a record from its line; a ValueError says what is wrong."""
    if data.get("format") != FORMAT:
        raise ValueError(f"format: expected {FORMAT!r}, got {data.get('format')!r}")
    record: StepRecord = read_record(StepRecord, data)
    return record


class HistoryRow(NamedTuple):
    """One head at one step."""

    run: str
    step: int
    layer: str
    head: int
    certified: bool
    values: dict[str, float]
    """By measure; NaN where it is not known."""


class MonitorHistory(PrintedOutput):
    """Every record of a monitor, as a table with a row for each step, layer and head.

    `records` are the steps, `alarms` the sentences of all alarms. `history.series("entropy", 3, 0)` is a
    curve, `to_csv` and `to_pandas` are the whole table, and `MonitorHistory.read(path)` is that of a file.
    """

    def __init__(self, records: Sequence[StepRecord] = ()) -> None:
        self.records = list(records)

    @classmethod
    def read(cls, path: str | PathLike[str], run: str | None = None) -> MonitorHistory:
        """Read the file at `path` that a monitor has written; a last line that a kill cut off is left out.

        `run` selects one of the `runs` that share the file; by default all of them are read.
        """
        lines = read_lines(Path(path), RunFileError, "the file of a monitor")
        with naming_errors(Path(path), RunFileError):
            records = [parse_record(line) for line in lines]
        history = cls(records)
        if run is not None:
            if run not in history.runs:
                raise ValueError(f"run: expected one of {', '.join(history.runs)}, got {run!r}")
            history = cls([record for record in records if record.run == run])
        return history

    @property
    def runs(self) -> list[str]:
        """The names of the runs, in their order: one, unless several have written to one file."""
        return list(dict.fromkeys(record.run for record in self.records))

    @property
    def alarms(self) -> list[str]:
        """The sentences of all alarms, in the order in which they came."""
        return [alarm for record in self.records for alarm in record.alarms]

    @property
    def layers(self) -> list[str]:
        """The keys of all layers, in the order in which they were first heard."""
        return list(dict.fromkeys(key for record in self.records for key in record.layers))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[HistoryRow]:
        for record in self.records:
            for key, layer in record.layers.items():
                for head in range(layer.num_heads):
                    values = {
                        name: math.nan if row[head] is None else float(row[head] or 0.0)
                        for name, row in layer.values.items()
                    }
                    yield HistoryRow(record.run, record.step, key, head, layer.certified, values)

    def series(self, measure: str, layer: int | str, head: int) -> list[tuple[int, float]]:
        """The steps and the numbers of one `measure` of one `head` of a `layer`, by its key."""
        if measure not in MEASURES:
            raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        if str(layer) not in self.layers:
            known = ", ".join(self.layers) or "none, since nothing has been heard"
            raise ValueError(f"layer: expected one of {known}, got {layer!r}")
        found = [
            (row.step, row.values[measure]) for row in self if row.layer == str(layer) and row.head == head
        ]
        if not found:
            raise ValueError(f"head: expected a head of layer {layer}, got {head!r}")
        return found

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the table to `path` as CSV, atomically."""
        self._values().save(path, line_end="\n", nan=math.nan)

    def to_pandas(self) -> Any:
        """The table as a pandas `DataFrame`."""
        return self._values().to_pandas()

    def _values(self) -> Table:
        *about, _ = HistoryRow._fields
        rows = [(*row[:-1], *(row.values.get(name, math.nan) for name in MEASURES)) for row in self]
        return Table([*about, *MEASURES], rows)

    def __str__(self) -> str:
        """The last reading of every layer, the extremes of its heads, and the alarms."""
        if not self.records:
            return (
                "MonitorHistory: nothing has been heard yet. A monitor listens inside `with monitor:`, or by "
                "its callback, to the forward passes of training, and counts steps by monitor.step()"
            )
        steps = f"step {self.records[0].step} to {self.records[-1].step}"
        if len(self.runs) > 1:
            steps += f" of {len(self.runs)} runs, which `runs` names"
        lines = [f"{len(self.records)} readings, {steps}; of each layer the last:"]
        last = {key: layer for record in self.records for key, layer in record.layers.items()}
        rows = [
            (
                key,
                *(_of(layer, measure, reduce) for measure, reduce in PRINTED),
                "yes" if layer.certified else f"no: {layer.problem}",
            )
            for key, layer in last.items()
        ]
        lines += Table(COLUMNS, rows).lines()
        lines += [f"! {alarm}" for alarm in self.alarms]
        return "\n".join(lines)


def _of(layer: HeardLayer, measure: str, reduce: Any) -> float:
    """One number for all heads of a layer; NaN if there is none."""
    found = [x for x in layer.values.get(measure, ()) if x is not None]
    return float(reduce(found)) if found else math.nan


PRINTED = (("max_score", max), ("entropy", fmean), ("relative_entropy", fmean), ("sink", max))
COLUMNS = (
    Column("layer", right=True, width=8),
    Column("max score", ".4g", right=True),
    Column("entropy", ".3f", right=True),
    Column("of ln n", ".3f", right=True),
    Column("sink", ".2f", right=True, width=5),
    Column("certified"),
)


def layer_numbers(record: StepRecord) -> dict[str, float]:
    """A few numbers for each layer, for loggers: the largest score, entropies and the largest sink share."""
    numbers = {}
    for key, layer in record.layers.items():
        for name, measure, reduce in (
            ("max_score", "max_score", max),
            ("entropy", "entropy", fmean),
            ("least_entropy", "entropy", min),
            ("sink", "sink", max),
            ("across_documents", "across", max),
        ):
            value = _of(layer, measure, reduce)
            if math.isfinite(value):
                numbers[f"attention/{key}/{name}"] = value
        numbers[f"attention/{key}/certified"] = float(layer.certified)
    return numbers
