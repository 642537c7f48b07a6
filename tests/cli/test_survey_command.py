"""`regard survey` in this process: what it writes, and what a user can get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.heads import read_survey
from regard.support.files import SurveyFileError
from tests.cli.conftest import TEXT, runner

run = runner("survey")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(f"{TEXT}\n" * 10)
    return tmp_path / "corpus.txt"


def test_parquet_with_a_row_a_head(folder: Path, corpus: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "survey.parquet"
    said = run(corpus, "--model", folder, "--out", out, "--length", 32, "--windows", 3, "--device", "cpu")
    assert "8 heads over 3 windows, 96 tokens; 0 have a label" in said
    found = parquet.read_table(out).to_pydict()
    assert found["kv_head"] == [0, 0, 1, 1] * 2
    assert all(
        low <= value <= high
        for low, value, high in zip(found["itself_low"], found["itself"], found["itself_high"], strict=True)
    )


def test_the_examples_go_to_the_page(folder: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "survey.csv"
    options = ["--model", folder, "--out", out, "--length", 32, "--device", "cpu", "--windows", 3]
    assert "regard inspect --survey" in run(corpus, *options, "--examples", 2)
    page = tmp_path / "page.html"
    arguments = ["inspect", "--survey", out, "--model", folder, "--text", "the wind", "--out", page]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    assert 'id="survey"' in page.read_text()
    run(corpus, *options, "--examples", 0)
    assert not (tmp_path / "survey.csv.examples").exists()  # it was of the survey before
    with pytest.raises(SurveyFileError, match="survey: expected the examples of a survey beside its table"):
        read_survey(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "survey.txt"], r"\.json, \.csv or \.parquet"),
        (["--length", "1"], "--length: expected at least 2"),
        (["--batch", "0"], "--batch: expected at least 1"),
    ],
)
def test_what_a_user_gets_wrong(folder: Path, corpus: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(corpus, "--model", folder, "--device", "cpu", *arguments)


def test_shards_are_joined_to_the_same_bytes(folder: Path, corpus: Path, tmp_path: Path) -> None:
    options = ["--model", folder, "--length", 8, "--windows", 7, "--device", "cpu"]
    run(corpus, *options, "--out", tmp_path / "whole.csv")
    out = tmp_path / "joined.csv"
    with pytest.raises(SurveyFileError, match="are missing"):
        run(corpus, *options, "--out", out, "--join")
    for shard in ("1/2", "0/2"):
        assert f"shard {shard}" in run(corpus, *options, "--out", out, "--shard", shard)
    assert "8 heads over" in run(corpus, *options, "--out", out, "--join")
    for suffix in ("", ".examples"):
        whole = tmp_path / f"whole.csv{suffix}"
        assert (tmp_path / f"joined.csv{suffix}").read_bytes() == whole.read_bytes()
    with pytest.raises(ValueError, match="--join: expected it without --shard"):
        run(corpus, *options, "--join", "--shard", "0/2")
    with pytest.raises(ValueError, match="shard: expected i/n"):
        run(corpus, *options, "--shard", "2/2")
