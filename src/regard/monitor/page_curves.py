"""The history of a monitor as the page's Time view shows it: every head at every reading."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from regard.gpt.training.history import MAX_EVALUATIONS, spread
from regard.monitor.history import MonitorHistory, StepRecord
from regard.support.files import RunFileError

SHOWN = {
    "entropy": "entropy",
    "max_score": "largest_score",
    "relative_entropy": "relative_entropy",
    "sink": "share_of_the_sink",
    "distance": "distance",
    "across": "share_across_documents",
    "padding": "share_on_padding",
    "gate": "share_of_the_sink_logit",
    "q_norm": "largest_query_norm",
    "k_norm": "largest_key_norm",
}
"""The measures that the page shows, each by the name that it has there, the first one first."""
MAX_ALARMS = 8  # that the page shows: the first ones are what went wrong first


def read_curves(path: str | PathLike[str]) -> dict[str, Any]:
    """Read the file of a monitor as plain data for the page, like `read_run`: the last of its runs.

    The numbers are those of training batches, under "batch". None stands for a layer that was not read at a
    step, and for a number that is not known there.
    """
    history = MonitorHistory.read(path)
    if not history.records:
        raise RunFileError(f"run: {path} holds no reading yet")
    history = MonitorHistory([record for record in history.records if record.run == history.runs[-1]])
    records = [history.records[i] for i in spread(len(history.records), MAX_EVALUATIONS)]
    # Layers may take turns, so that no single record has all of them.
    heads: dict[str, int] = {}
    for record in history.records:
        for key, layer in record.layers.items():
            heads[key] = max(heads.get(key, 0), layer.num_heads)
    tables = {
        shown: [_table(record, measure, heads) for record in records] for measure, shown in SHOWN.items()
    }
    unknown = [None] * len(records)
    return {
        "name": Path(path).resolve().name,
        "steps": [record.step for record in records],
        "batch": {
            name: {"heads": table, "null": unknown} for name, table in tables.items() if _has_numbers(table)
        },
        "validation": unknown,
        "sample": [""] * len(records),
        "loss": {"steps": [], "values": []},
        "alarms": history.alarms[:MAX_ALARMS],
    }


def _table(record: StepRecord, measure: str, heads: dict[str, int]) -> list[list[float | None]]:
    """One measure of every head at one step, by layer."""
    rows = {key: layer.values.get(measure, []) for key, layer in record.layers.items()}
    return [[*rows.get(key, []), *[None] * count][:count] for key, count in heads.items()]


def _has_numbers(table: list[list[list[float | None]]]) -> bool:
    return any(x is not None for layers in table for row in layers for x in row)
