"""A training run as the page shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.gpt.loader import BOX
from regard.gpt.training.history import HEADS_FILE, MAX_EVALUATIONS, MAX_LOSSES, METRICS_FILE, read_run


def write(folder: Path, steps: list[int], *, tail: str = "", heads: int = 2) -> Path:
    def table(step: int) -> dict[str, Any]:
        return {"induction": {"heads": [[step / 1000] * heads, [float("nan")] * heads], "null": 0.1}}

    lines = [json.dumps({"step": step, "text": table(step), "repeats": table(step)}) for step in steps]
    (folder / HEADS_FILE).write_text("\n".join(lines) + "\n" + tail)
    return folder


def test_the_run_of_the_model_in_the_box() -> None:
    found = read_run(BOX)
    lines = [json.loads(line) for line in (BOX / HEADS_FILE).read_text().splitlines()]
    assert found["steps"] == [line["step"] for line in lines]
    assert found["text"]["induction"]["heads"][-1] == lines[-1]["text"]["induction"]["heads"]
    assert found["repeats"]["induction"]["null"][0] == lines[0]["repeats"]["induction"]["null"]
    assert None not in found["validation"]
    assert len(found["loss"]["steps"]) == len(found["loss"]["values"]) <= MAX_LOSSES
    json.dumps(found, allow_nan=False)


def test_no_number_is_none_and_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    found = read_run(write(tmp_path, [0, 10, 5], tail='{"step": 20, "te'))
    assert found["steps"] == [0, 5, 10]
    assert found["text"]["induction"]["heads"][1] == [[0.005, 0.005], [None, None]]
    assert found["validation"] == [None] * 3
    assert found["loss"] == {"steps": [], "values": []}


def test_a_long_run_is_thinned_with_its_ends_kept(tmp_path: Path) -> None:
    found = read_run(write(tmp_path, list(range(0, 3000, 10))))
    assert len(found["steps"]) == MAX_EVALUATIONS
    assert (found["steps"][0], found["steps"][-1]) == (0, 2990)
    assert found["steps"] == sorted(set(found["steps"]))


def test_the_losses_are_means_that_keep_the_mean(tmp_path: Path) -> None:
    write(tmp_path, [0])
    losses = [{"step": step, "loss": float(step % 7)} for step in range(1, 1025)]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in losses))
    found = read_run(tmp_path)["loss"]
    assert found["steps"][-1] == 1024
    assert sum(found["values"]) / MAX_LOSSES == pytest.approx(sum(line["loss"] for line in losses) / 1024)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"run: expected a folder that `regard train` wrote, with heads.jsonl"
    ):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text("")
    with pytest.raises(ValueError, match="holds no evaluation yet"):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text('{"step": 1, "text": 5}\n')
    with pytest.raises(ValueError, match="is not a history of `regard train`"):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"line 1 .* is not JSON"):
        read_run(tmp_path)


def test_heads_that_come_and_go_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [0])
    first = (tmp_path / HEADS_FILE).read_text()
    write(tmp_path, [5], heads=3)
    (tmp_path / HEADS_FILE).write_text(first + (tmp_path / HEADS_FILE).read_text())
    with pytest.raises(ValueError, match="the number of heads changes"):
        read_run(tmp_path)
