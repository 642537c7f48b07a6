"""The history of a training run: two JSON-lines files in its folder, written and read here and nowhere else.

`metrics.jsonl` has a line for each step (loss, learning rate, gradient norm) and one for each evaluation
(validation loss, sample). `heads.jsonl` has a line for each evaluation: every score of every head, on
validation text and on repeated random tokens. This file knows their names and their layout; it knows neither
the model nor the training loop.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads import HeadScores
from regard.support.files import (
    RunFileError,
    check_regular_file,
    check_type,
    get_field,
    is_present,
    naming_errors,
    shorten,
)
from regard.support.json_lines import append_lines, read_lines

METRICS_FILE, HEADS_FILE = "metrics.jsonl", "heads.jsonl"
INPUTS = ("text", "repeats")
"""What the heads are scored on: validation text, and repeated random tokens."""

MAX_EVALUATIONS = 64  # evaluations that are returned; those of a longer run are thinned out evenly
MAX_LOSSES = 256  # points of the training loss, each the mean over the steps since the last one
MAX_SAMPLE = 400  # characters of a sample


class StepMetrics(NamedTuple):
    """The figures of one optimizer step."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float


# Writing


def append_steps(
    folder: Path, steps: Sequence[StepMetrics], tokens_per_second: float, seconds: float
) -> None:
    """Append the metrics of steps; the last line gets the speed and the seconds since the run began."""
    lines: list[dict[str, Any]] = [metrics._asdict() for metrics in steps]
    lines[-1] |= {"tokens_per_second": round(tokens_per_second), "seconds": round(seconds, 2)}
    append_lines(folder / METRICS_FILE, lines)


def append_evaluation(
    folder: Path, step: int, *, validation: float, seconds: float, sample: str, scores: Mapping[str, Any]
) -> None:
    """Append an evaluation.

    `validation` is the validation loss, `seconds` the time since the run began, `sample` a text that the
    model wrote, and `scores` a table from `score_table` for each of `INPUTS`.
    """
    metrics = {"step": step, "validation": validation, "seconds": round(seconds, 2), "sample": sample}
    append_lines(folder / METRICS_FILE, [metrics])
    append_lines(folder / HEADS_FILE, [{"step": step, **scores}])


def score_table(scores: Sequence[HeadScores], baselines: Sequence[HeadScores]) -> dict[str, Any]:
    """The scores of every layer (each (B, H)) as plain data: the mean over the batch, and the baseline.

    For each score, `heads` has a row for each layer with a number for each head, and `null` is the mean score
    of uniform attention. A number is NaN if the score is undefined on every text.
    """
    return {
        name: {
            # Rounded, since the file grows with every head and every evaluation.
            "heads": [[round(x, 5) for x in layer.nanmean(0).tolist()] for layer in _fields(scores, name)],
            "null": round(float(torch.stack(_fields(baselines, name)).nanmean()), 5),
        }
        for name in HeadScores._fields
    }


def sizes(folder: Path) -> dict[str, dict[str, int]]:
    """The length of each file of a history, which is on disk when this returns.

    Lines are only ever appended, so that a checkpoint can name its part of the history by them.
    """
    lengths = dict.fromkeys((METRICS_FILE, HEADS_FILE), 0)
    for name in lengths:
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                # A checkpoint that names these bytes must not outlive them in a power cut.
                os.fsync(file.fileno())
                lengths[name] = os.fstat(file.fileno()).st_size
    return {name: {"bytes": length} for name, length in lengths.items()}


def check(folder: Path, lengths: Mapping[str, Any]) -> None:
    """Raise a ValueError unless a history is as long as it was when `sizes` gave `lengths`."""
    if lengths.keys() != {METRICS_FILE, HEADS_FILE}:  # no other file is truncated later
        raise ValueError(f"history: expected {METRICS_FILE} and {HEADS_FILE}, got {shorten(sorted(lengths))}")
    for name in lengths:
        path, size = folder / name, get_field(get_field(lengths, name, dict), "bytes", int)
        check_whole_number(name, size, 0)
        there = check_regular_file(path, RunFileError, "the history of a run") if is_present(path) else 0
        if there < size:
            raise ValueError(f"{path} is damaged: expected at least {size} bytes of the run, got {there}")


def truncate(folder: Path, lengths: Mapping[str, Any]) -> None:
    """Remove what was appended to a history after `sizes` gave `lengths`."""
    for name, size in lengths.items():
        if (folder / name).exists():
            os.truncate(folder / name, size["bytes"])


def _fields(layers: Sequence[HeadScores], name: str) -> list[Tensor]:
    """One score of every layer, (B, H) each."""
    return [getattr(layer, name) for layer in layers]


# Reading


def has_history(folder: Path) -> bool:
    """Whether a folder holds the history of a training run."""
    return is_present(folder / HEADS_FILE)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of the metrics file of a run; an incomplete last line is left out."""
    return list(_read_lines(folder / METRICS_FILE))


def read_run(folder: str | PathLike[str]) -> dict[str, Any]:
    """The history of a run as plain data for the page, from a folder that `regard train` wrote.

    It has `steps`, the steps of the evaluations; for "text" and "repeats" each score's `heads` (step, layer,
    head) and `null` (step); `validation` and `sample` of each evaluation; and the training `loss`, thinned.
    None stands for a number that is missing, NaN or infinite.
    """
    folder = Path(folder)
    heads_file = folder / HEADS_FILE

    # A resumed run may have evaluated a step twice: the later line counts.
    by_step = {line["step"]: line for line in _read_lines(heads_file)}
    if not by_step:
        raise RunFileError(f"run: {heads_file} holds no evaluation yet")
    evaluations = [by_step[step] for step in sorted(by_step)]
    evaluations = [evaluations[i] for i in spread(len(evaluations), MAX_EVALUATIONS)]
    steps = [line["step"] for line in evaluations]
    try:
        scores = {name: _read_scores(evaluations, name) for name in INPUTS if name in evaluations[0]}
    except ValueError as error:
        raise RunFileError(f"run: {heads_file} is not a history of `regard train`: {error}") from None

    metrics = read_metrics(folder) if is_present(folder / METRICS_FILE) else []
    validation = {line["step"]: line for line in metrics if "validation" in line}
    return {
        "name": folder.resolve().name,
        "steps": steps,
        **scores,
        "validation": [_number(validation.get(step, {}).get("validation")) for step in steps],
        "sample": [str(validation.get(step, {}).get("sample", ""))[:MAX_SAMPLE] for step in steps],
        "loss": _mean_losses(_read_losses(folder / METRICS_FILE, metrics)),
    }


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, each of which has a step; an incomplete last line is left out."""
    if not is_present(path):
        raise RunFileError(
            f"run: expected a folder that `regard train` wrote, with {path.name} in it, got {path.parent}"
        )
    # finite=False: a diverged loss is written as NaN, and the page shows it as a gap.
    for line in read_lines(path, RunFileError, "the history of a run", finite=False):
        with naming_errors(path, RunFileError):
            check_whole_number("step", line.get("step"), 0)
        yield line


def _read_losses(path: Path, metrics: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    """The step and the training loss of the lines that have one."""
    with naming_errors(path, RunFileError):
        return [(line["step"], get_field(line, "loss", float)) for line in metrics if "loss" in line]


def _read_scores(lines: Sequence[dict[str, Any]], inputs: str) -> dict[str, Any]:
    """Each score on `inputs` over all steps; a ValueError if the number of heads changes."""
    shape = None
    scores = {}
    for name in get_field(lines[0], inputs, dict):
        entries = [get_field(get_field(line, inputs, dict), name, dict) for line in lines]
        tables = [[check_type(name, x, list) for x in get_field(entry, "heads", list)] for entry in entries]
        shape = shape or [len(layer) for layer in tables[0]]
        if any([len(layer) for layer in table] != shape for table in tables):
            raise ValueError(f"run: the number of heads changes during the run ({shorten(name)})")
        scores[name] = {
            "heads": [[[_number(x) for x in layer] for layer in table] for table in tables],
            "null": [_number(entry.get("null")) for entry in entries],
        }
    return scores


def _mean_losses(losses: list[tuple[int, float]]) -> dict[str, list[Any]]:
    """The mean losses of at most `MAX_LOSSES` equal intervals of the run, each at its last step."""
    losses.sort()
    count = min(MAX_LOSSES, len(losses))
    edges = [i * len(losses) // max(count, 1) for i in range(count + 1)]
    intervals = [losses[start:end] for start, end in pairwise(edges)]
    return {
        "steps": [interval[-1][0] for interval in intervals],
        "values": [_number(sum(x for _, x in interval) / len(interval)) for interval in intervals],
    }


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` indices below `count`, evenly spread, the first and the last included."""
    if count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
