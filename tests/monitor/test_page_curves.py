"""The history of a monitor as the page's Time view shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.monitor.history import HeardLayer, HeardLayers, StepRecord
from regard.monitor.page_curves import read_curves
from regard.support.files import RunFileError
from regard.support.json_lines import append_lines


def heard(step: int, key: str, scores: list[float | None], run: str = "second") -> StepRecord:
    layer = HeardLayer(f"layers.{key}", True, "", {"max_score": scores, "across": [None] * len(scores)})
    return StepRecord(step, (0, 9, 10), (1, 10), HeardLayers({key: layer}), run=run)


def test_layers_that_take_turns_have_a_place_at_every_step(tmp_path: Path) -> None:
    path = tmp_path / "attention.jsonl"
    for record in (
        heard(5, "0", [9.0, 9.0], run="first"),
        heard(0, "0", [1.0, 2.0]),
        heard(10, "1", [3.0, None]),
    ):
        append_lines(path, [record.line()])
    found = read_curves(path)
    assert (found["name"], found["steps"]) == ("attention.jsonl", [0, 10])
    table = found["batch"]["largest_score"]
    assert table["heads"] == [[[1.0, 2.0], [None, None]], [[None, None], [3.0, None]]]
    assert table["null"] == [None, None]
    assert list(found["batch"]) == ["largest_score"]  # nothing is known of documents


def test_a_long_history_is_thinned_and_an_empty_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    for step in range(200):
        append_lines(path, [heard(step, "0", [float(step)]).line()])
    steps = read_curves(path)["steps"]
    assert (len(steps), steps[0], steps[-1]) == (64, 0, 199)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(RunFileError, match="holds no reading yet"):
        read_curves(tmp_path / "empty.jsonl")
