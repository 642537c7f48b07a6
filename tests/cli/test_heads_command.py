"""`regard heads`: the table in the terminal, in files, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.heads import HeadTable
from tests.cli.conftest import TEXT as SENTENCE
from tests.cli.conftest import runner

TEXT = SENTENCE * 4
run = runner("heads")


def test_a_table_with_every_head(folder: Path) -> None:
    shown = run("--model", folder, "--text", TEXT, "--all")
    assert "0 of 8 heads have a label" in shown  # an untrained model looks everywhere alike
    assert "layer kv head does" in shown
    assert [line.split()[-2] for line in shown.splitlines() if "–" in line] == ["–"] * 8
    assert max(map(len, shown.splitlines())) <= 80


def test_the_answer_comes_first(folder: Path) -> None:
    shown = run("--model", folder, "--text", TEXT)
    kinds = ["induction", "duplicate", "previous token", "self", "local"]
    assert [line.partition(": ")[0] for line in shown.splitlines() if ": attention on" in line] == kinds
    assert shown.count("no head; the highest score is") == 5  # an untrained model has no kinds
    assert "8 heads have no label: --all" in shown
    assert "layer kv head" not in shown
    only = run("--model", folder, "--text", TEXT, "--label", "previous token")
    assert only.count(": attention on") == 1
    assert "have no label:" not in only


def test_importance_stands_beside_the_scores(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    options = [
        "--model",
        folder,
        "--text",
        TEXT,
        "--length",
        32,
        "--windows",
        2,
        "--no-probe",
        "--no-shuffle",
    ]
    shown = run(*options, "--importance", "--json", path, "--top", 2)
    assert "importance: rise of the loss when the head is ablated" in shown
    table = HeadTable.from_json(path)
    scores = json.loads(path.read_text())[0]["scores"]
    assert "induction_on_repeats" not in scores
    assert scores["itself"]["shuffled"] is None
    for row in table.best("importance", 2):
        assert f"{row.scores['importance'].value:+.3f}" in shown
        assert row.place in shown
    whole = run(*options, "--importance", "--all")
    assert whole.count("+0.") + whole.count("-0.") >= 8  # a value for every head
    assert max(map(len, whole.splitlines())) <= 80


def test_long_texts_are_read_in_windows_and_files_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 3)
    files = ("--json", tmp_path / "heads.json", "--csv", tmp_path / "heads.csv")
    shown = run("--model", folder, "--file", tmp_path / "text.txt", "--length", 32, "--windows", 3, *files)
    assert "(3 texts, 96 tokens)" in shown
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert [(row["layer"], row["head"], row["kv_head"]) for row in rows[4:]] == [
        (1, 0, 0),
        (1, 1, 0),
        (1, 2, 1),
        (1, 3, 1),
    ]
    assert "induction_on_repeats" in rows[0]["scores"]
    assert rows[0]["scores"]["itself"]["shuffled"] is not None
    assert len(HeadTable.from_json(tmp_path / "heads.json")) == 8
    assert len((tmp_path / "heads.csv").read_text().splitlines()) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json", "heads.txt"), r"expected a file that ends with \.json"),
        (("--label", "inductoin"), r"label: expected one of induction, duplicate, .*got 'inductoin'"),
        (("--all", "--top", 2), "--all: expected without --label and --top"),
        (("--top", 0), "--top: expected at least 1, got 0"),
        (("--text", ""), "at least two tokens"),
        (("--text", TEXT, "--length", 1), "--length"),
    ],
)
def test_what_a_user_gets_wrong(folder: Path, arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run("--model", folder, *arguments)
