"""`regard heads`: the table in the terminal, in files, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.gpt import GPT, Config
from regard.gpt.tokens import bpe_tokenizer
from regard.heads import HeadTable

TEXT = "the sea was high and the wind was in the north so the ships came home to the land again " * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    model = GPT(
        Config(vocab_size=300, context_length=64, num_layers=2, num_heads=4, d_model=16, num_kv_heads=2)
    ).eval()
    model.tokenizer = bpe_tokenizer([TEXT], 300)
    model.save(path)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["heads", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


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
    options = (
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
    )
    shown = run(*options, "--importance", "--json", path, "--top", 2)
    assert "importance: rise of the loss when the head is ablated" in shown
    table = HeadTable.from_json(path)
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


def test_without_probe_and_shuffle(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    run("--model", folder, "--text", TEXT, "--no-probe", "--no-shuffle", "--json", path)
    scores = json.loads(path.read_text())[0]["scores"]
    assert "induction_on_repeats" not in scores
    assert scores["itself"]["shuffled"] is None


def test_what_a_user_gets_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a file that ends with \.json"):
        run("--model", folder, "--json", tmp_path / "heads.txt")
    with pytest.raises(ValueError, match=r"label: expected one of induction, duplicate, .*got 'inductoin'"):
        run("--model", folder, "--label", "inductoin")
    with pytest.raises(ValueError, match="--all: expected without --label and --top"):
        run("--model", folder, "--all", "--top", 2)
    with pytest.raises(ValueError, match="--top: expected at least 1, got 0"):
        run("--model", folder, "--top", 0)
    with pytest.raises(ValueError, match="at least two tokens"):
        run("--model", folder, "--text", "")
    with pytest.raises(ValueError, match="--length"):
        run("--model", folder, "--text", TEXT, "--length", 1)
