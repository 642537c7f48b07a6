"""A training run as the page shows it: what every head did at each evaluation, with the losses beside.

Reads `heads.jsonl` and `metrics.jsonl` of a run's folder, which are plain text; it needs neither the model
nor the checkpoints. This file knows those two files; it does not know training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

MOST = 64  # evaluations that are shown: a longer run is thinned out evenly
LOSSES = 256  # points of the training loss, each the mean over the steps up to it
SAMPLE = 400  # characters of what the model wrote
ON = ("text", "repeats")


def read_run(folder: str | PathLike[str]) -> dict[str, Any]:
    """What `Contents(time=…)` takes, from a folder that `regard train` wrote.

    `steps`; for "text" and "repeats" each score's `heads` (step, layer, head) and `null` (step); `validation`
    and `sample` by step; and the training `loss`, thinned. None stands where there was no number.
    """
    folder = Path(folder)
    lines = _last_of_each_step(_lines(folder / "heads.jsonl"))
    if not lines:
        raise ValueError(f"run: {folder / 'heads.jsonl'} holds no evaluation yet")
    lines = [lines[i] for i in _evenly(len(lines), MOST)]
    metrics = list(_lines(folder / "metrics.jsonl")) if (folder / "metrics.jsonl").exists() else []
    judged = {line["step"]: line for line in metrics if "validation" in line}
    steps = [line["step"] for line in lines]
    try:
        found = {on: _scores(lines, on) for on in ON if on in lines[0]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"run: {folder / 'heads.jsonl'} is not as a run writes it: {error!r}") from None
    return {
        "name": folder.resolve().name,
        "steps": steps,
        **found,
        "validation": [_number(judged.get(step, {}).get("validation")) for step in steps],
        "sample": [str(judged.get(step, {}).get("sample", ""))[:SAMPLE] for step in steps],
        "loss": _thinned([(line["step"], line["loss"]) for line in metrics if "loss" in line]),
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's file that hold a step; the last may be unfinished."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"run: expected a folder that `regard train` wrote, with {path.name} in it: {error}"
        ) from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found = json.loads(line)
        except ValueError:
            if text.endswith("\n") or number < len(text.splitlines()):
                raise ValueError(f"run: line {number} of {path} is not JSON") from None
            continue
        if isinstance(found, dict) and isinstance(found.get("step"), int):
            yield found


def _last_of_each_step(lines: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """In order of steps; a resumed run may have evaluated one twice."""
    found = {line["step"]: line for line in lines}
    return [found[step] for step in sorted(found)]


def _scores(lines: Sequence[dict[str, Any]], on: str) -> dict[str, Any]:
    """Every score by name: its table of every step, all of the first one's shape."""
    shape = [len(layer) for layer in next(iter(lines[0][on].values()))["heads"]]
    out = {}
    for name in lines[0][on]:
        tables = [line[on][name]["heads"] for line in lines]
        if any([len(layer) for layer in table] != shape for table in tables):
            raise ValueError(f"run: the number of heads changes during the run ({name})")
        out[name] = {
            "heads": [[[_number(x) for x in layer] for layer in table] for table in tables],
            "null": [_number(line[on][name]["null"]) for line in lines],
        }
    return out


def _thinned(losses: list[tuple[int, float]]) -> dict[str, list[Any]]:
    """Means over equal pieces of the run, each at its last step."""
    losses.sort()
    count = min(LOSSES, len(losses))
    edges = [i * len(losses) // max(count, 1) for i in range(count + 1)]
    pieces = [losses[a:b] for a, b in pairwise(edges)]
    return {
        "steps": [piece[-1][0] for piece in pieces],
        "values": [_number(sum(x for _, x in piece) / len(piece)) for piece in pieces],
    }


def _evenly(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
