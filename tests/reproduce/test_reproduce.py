"""Published results that are run again: the record, the verdict, the command and the pages."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.reproduce import runs
from regard.reproduce.chart import Chart
from regard.reproduce.record import (
    Findings,
    PublishedResult,
    ReproductionRecord,
    RunOptions,
    counted,
    estimated,
)
from regard.support.files import RunFileError
from scripts import reproductions

LINES = {"a": [[0.0, 1.0], [1.0, 2.0]], "b": [[0.0, 2.0], [1.0, 1.0]]}
CHARTS = [
    Chart("lines", "step", "loss", LINES, marks={"alarm": 0.5}, baseline=1.5, log_y=True),
    Chart("bars", "", "share", LINES, kind="bars", places=("left", "right")),
]
YES = counted("alarms", 3, ">", 0, "none")
NO = estimated("difference", [-1.0, 1.0, 0.0, 0.5], ">", 0.0, "no difference", "4 texts")


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [([YES, YES], "holds"), ([YES, NO], "holds in part"), ([NO, NO], "does not hold here")],
)
def test_the_verdict_follows_from_the_checks(checks, verdict):
    assert Findings(checks, []).verdict == verdict


def test_a_check_holds_only_if_its_whole_interval_lies_beyond_the_baseline():
    samples = np.random.default_rng(0).normal(1.0, 1.0, 200).tolist()
    for baseline, side, holds in ((0.5, ">", True), (1.0, ">", False), (1.0, "<", False), (1.5, "<", True)):
        check = estimated("x", samples, side, baseline, "y", "200 draws")
        assert check.low < check.value < check.high
        assert check.high - check.low == pytest.approx(4 * np.std(samples) / np.sqrt(200), rel=0.1)
        assert check.holds is holds


def test_a_record_comes_back_from_its_file(tmp_path):
    findings = Findings([YES, NO], CHARTS, "A note.", {"steps": 5})
    record = ReproductionRecord("name", True, 3, findings, {"torch": "2"}, 1.5)
    record.write(tmp_path / "x.json")
    again = ReproductionRecord.read(tmp_path / "x.json")
    again.write(tmp_path / "y.json")
    assert (tmp_path / "x.json").read_text() == (tmp_path / "y.json").read_text()
    assert again.findings.verdict == json.loads((tmp_path / "x.json").read_text())["findings"]["verdict"]
    (tmp_path / "z.json").write_text('{"format": "another"}')
    with pytest.raises(RunFileError, match="expected the format"):
        ReproductionRecord.read(tmp_path / "z.json")


def test_every_result_is_described_in_at_most_150_lines():
    for name in runs.NAMES:
        module = runs.load(name)
        assert len(Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()) <= 150, name
        about = runs.RESULTS[name]
        assert all((about.title, about.papers, about.claim, about.method, about.limits)), name
        assert about.quick.keys() == about.full.keys(), name


def test_the_command_lists_the_results_and_runs_one(tmp_path, monkeypatch):
    listed = CliRunner().invoke(app, ["reproduce"])
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(runs.NAMES)

    def run(options, sizes):
        options.report("halfway")
        assert options.quick
        return Findings([YES, NO], CHARTS, "A note.", {"steps": 5})

    about = PublishedResult("A title", ["A paper"], "A claim.", "A method.", "Limits.")
    monkeypatch.setattr(runs, "load", lambda name: SimpleNamespace(run=run))
    monkeypatch.setitem(runs.RESULTS, "induction", about)
    arguments = ["reproduce", "induction", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "A claim." in result.stdout
    assert "alarms: 3 > 0 (none)? yes" in result.stdout
    assert "holds in part" in result.stdout
    assert (tmp_path / "induction.png").stat().st_size > 1000
    record = ReproductionRecord.read(tmp_path / "induction.json")
    assert record.machine["device"] == "cpu"
    assert reproductions.page(about, record).startswith(reproductions.NOTE)


def test_the_pages_are_up_to_date():
    """`python -m scripts.reproductions` writes them; their numbers are those of full runs."""
    for path, text in reproductions.pages().items():
        assert path.read_text(encoding="utf-8") == text, path.name
    for name, record in reproductions.records().items():
        assert record.name == name
        assert not record.quick, name


@pytest.mark.at_length("test_the_command_lists_the_results_and_runs_one")  # some minutes
@pytest.mark.parametrize("name", runs.NAMES)
def test_quick_runs_end_with_a_verdict(name):
    record = runs.reproduce(name, RunOptions(quick=True, report=lambda line: None))
    assert record.findings.checks
    assert record.findings.charts
