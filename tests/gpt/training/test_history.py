"""The history of a training run: writing and reading are inverse, and the page gets plain data."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.gpt.training import history
from regard.gpt.training.history import (
    HEADS_FILE,
    MAX_EVALUATIONS,
    MAX_LOSSES,
    METRICS_FILE,
    StepMetrics,
    read_metrics,
    read_run,
    score_table,
)
from regard.heads import HeadScores
from regard.support.files import RunFileError


def write(folder: Path, steps: list[int], *, tail: str = "", heads: int = 2) -> Path:
    def table(step: int) -> dict[str, Any]:
        return {"induction": {"heads": [[step / 1000] * heads, [float("nan")] * heads], "null": 0.1}}

    lines = [json.dumps({"step": step, "text": table(step), "repeats": table(step)}) for step in steps]
    (folder / HEADS_FILE).write_text("\n".join(lines) + "\n" + tail)
    return folder


def append_run(folder: Path, steps: list[int]) -> list[dict[str, Any]]:
    """Write steps with an evaluation each, of two layers of three heads; return the tables of scores."""
    tables = []
    for step in steps:
        scores = [HeadScores(*torch.rand(len(HeadScores._fields), 2, 3)) for _ in range(2)]
        baselines = [HeadScores(*torch.rand(len(HeadScores._fields), 2, 3)) for _ in range(2)]
        tables.append({"text": score_table(scores, baselines), "repeats": score_table(baselines, scores)})
        history.append_steps(folder, [StepMetrics(step, 0.5 + step, 1e-3, 2.0)], 1234.5, step / 3)
        history.append_evaluation(
            folder, step, validation=step / 7, seconds=step / 3, sample=f"text {step}", scores=tables[-1]
        )
    return tables


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert not history.has_history(tmp_path)
    tables = append_run(tmp_path, [0, 10, 20])
    assert history.has_history(tmp_path)
    run = read_run(tmp_path)
    assert run["steps"] == [0, 10, 20]
    for inputs in ("text", "repeats"):
        assert run[inputs].keys() == set(HeadScores._fields)
        for name, score in run[inputs].items():
            assert score["heads"] == [table[inputs][name]["heads"] for table in tables]
            assert score["null"] == [table[inputs][name]["null"] for table in tables]
    assert run["validation"] == [0.0, 10 / 7, 20 / 7]
    assert run["sample"] == ["text 0", "text 10", "text 20"]
    assert run["loss"] == {"steps": [0, 10, 20], "values": [0.5, 10.5, 20.5]}
    first = {"step": 0, "loss": 0.5, "learning_rate": 1e-3, "gradient_norm": 2.0}
    assert read_metrics(tmp_path)[0] == first | {"tokens_per_second": 1234, "seconds": 0.0}


def test_truncating_removes_what_came_after_a_checkpoint(tmp_path: Path) -> None:
    append_run(tmp_path, [0, 10])
    lengths = history.sizes(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in (METRICS_FILE, HEADS_FILE)}
    append_run(tmp_path, [20])
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 21, "lo')  # a line that a killed run did not finish
    history.check(tmp_path, lengths)
    history.truncate(tmp_path, lengths)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("name", [METRICS_FILE, HEADS_FILE])
def test_a_history_that_was_cut_off_is_named(tmp_path: Path, name: str) -> None:
    append_run(tmp_path, [0, 10])
    lengths = history.sizes(tmp_path)
    data = (tmp_path / name).read_bytes()
    for damaged in (data[:-1], b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{name} is damaged: expected at least {len(data)} bytes"):
            history.check(tmp_path, lengths)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        history.check(tmp_path, lengths)


def test_nan_is_none_and_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [0, 10, 5], tail='{"step": 20, "te'))
    assert run["steps"] == [0, 5, 10]
    assert run["text"]["induction"]["heads"][1] == [[0.005, 0.005], [None, None]]
    assert run["validation"] == [None] * 3
    assert run["loss"] == {"steps": [], "values": []}


def test_a_long_run_is_thinned_with_its_ends_kept(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, list(range(0, 3000, 10))))
    assert len(run["steps"]) == MAX_EVALUATIONS
    assert (run["steps"][0], run["steps"][-1]) == (0, 2990)
    assert run["steps"] == sorted(set(run["steps"]))


def test_the_losses_are_means_that_keep_the_mean(tmp_path: Path) -> None:
    write(tmp_path, [0])
    losses = [{"step": step, "loss": float(step % 7)} for step in range(1, 1025)]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in losses))
    loss = read_run(tmp_path)["loss"]
    assert loss["steps"][-1] == 1024
    assert sum(loss["values"]) / MAX_LOSSES == pytest.approx(sum(line["loss"] for line in losses) / 1024)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match=r"line 1: expected JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"../book.txt": {"bytes": 0}}, r"history: expected metrics\.jsonl and heads\.jsonl"),
        ({METRICS_FILE: 5, HEADS_FILE: 5}, r"metrics\.jsonl: expected an object, got 5"),
        ({METRICS_FILE: {"bytes": -1}, HEADS_FILE: {}}, r"metrics\.jsonl: expected a whole number .*got -1"),
        ({METRICS_FILE: {"bytes": 1 << 60}, HEADS_FILE: {}}, "is damaged: expected at least"),
    ],
)
def test_a_checkpoint_names_no_other_file_than_its_history(tmp_path: Path, marks: dict, says: str) -> None:
    """A checkpoint of someone else may say anything, and what it names is truncated later."""
    write(tmp_path, [0])
    (tmp_path / METRICS_FILE).write_text("")
    with pytest.raises(ValueError, match=says):
        history.check(tmp_path, marks)


@pytest.mark.parametrize("line", ['{"step": "1"}', '{"step": 1, "loss": "low"}', "[1]"])
def test_a_line_of_another_kind_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path, [0])
    (tmp_path / METRICS_FILE).write_text(f"{line}\n")
    with pytest.raises(RunFileError, match=r"metrics\.jsonl"):
        read_run(tmp_path)
