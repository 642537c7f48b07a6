"""Reports read well: what matters first, on one screen, the same in a terminal, a test and a notebook."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import regard
from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import NAMES, plant_mistake
from regard.checker.reports.report import Check, Diagnosis, Report
from regard.cli import app
from regard.testing import assert_attention
from tests.checker.planting import load
from tests.sampling import combine, share

SCREEN = (24, 100)
WRONG = Diagnosis("no-scale", "Your output equals this.", "It learns worse.", "divide by √D")
WARNING = Diagnosis(
    "persistent-mask", "The mask is saved.", "It does not load.", "persistent=False", warning=True
)


def a_report(**fields):
    checks = [
        Check("batch", "passed"),
        Check("mask", "failed", "differs by up to 3 % of the largest number"),
        Check("output", "failed", "differs by up to 90 % of the largest number"),
        Check("causality", "failed", "output 0 depends on token 1"),
        Check("weights load", "warning", "they do not", "persistent-mask"),
        Check("cache", "untried", "pass cached=step"),
        Check("padding", "skipped", "no such argument"),
    ]
    return Report("Head", ["inputs (B, T, C)"], checks, [WRONG, WARNING], seconds=0.5, **fields)


def test_what_matters_comes_first():
    assert str(a_report()) == (
        "Head is WRONG: no-scale (3 checks failed)\n"
        "  ✗ mask: differs by up to 3 % of the largest number; also output\n"
        "  ✗ causality: output 0 depends on token 1\n"
        "\n"
        "  no-scale\n"
        "    Your output equals this. It learns worse.\n"
        "    fix: divide by √D\n"
        "\n"
        "  ! persistent-mask: The mask is saved.\n"
        "    fix: persistent=False\n"
        "\n"
        "  ✓ batch\n"
        "  ? not tried: cache: pass cached=step\n"
        "  – skipped padding: no such argument\n"
        "  assumed inputs (B, T, C)\n"
        "  0.5 s"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    combine(
        share(["inverted-mask", "persistent-mask", "dropout-on-scores", "one-projection"], 2),
        ["head", "layer"],
    ),
)
def test_the_report_of_a_small_module_fits_on_a_screen(name, kind):
    report = regard.check(load(plant_mistake(CATALOGUE[name], kind), NAMES[kind]))
    lines = str(report).splitlines()
    assert len(lines) <= SCREEN[0], str(report)
    assert max(map(len, lines)) <= SCREEN[1]
    assert name in "\n".join(lines[:6])


@pytest.mark.at_length("test_wrong_is_one_and_json_is_json")
def test_the_command_prints_the_lines_of_the_report(tmp_path, monkeypatch, in_this_process):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("head.py").write_text(plant_mistake(CATALOGUE["no-scale"], "head"))
    printed = CliRunner().invoke(app, ["check", "head.py:CausalHead"]).output
    report = regard.check(load(Path("head.py").read_text(), "CausalHead"))
    assert _without_time(printed) == _without_time(str(report))


def _without_time(text):
    return re.sub(r"\d+\.\d s", "", text).strip()


def test_a_notebook_shows_the_report_as_text():
    page = Report("Head", checks=[Check("output", "failed", "a < b")])._repr_html_()
    assert page.startswith("<pre>Head is WRONG")
    assert "a &lt; b" in page


def test_numbers_are_said_in_words():
    from regard.checker.oracle.oracle import describe_agreement, describe_difference

    assert describe_difference(0.973) == "differs by up to 97 % of the largest number"
    assert describe_difference(0.0321) == "differs by up to 3.2 % of the largest number"
    assert describe_difference(0.0996) == "differs by up to 10 % of the largest number"
    assert describe_difference(2.6e-5) == "differs by up to 3e-05 of the largest number"
    assert describe_difference(float("inf")) == "NaN or inf instead of numbers"
    assert describe_agreement(3e-16) == "up to rounding"
    assert describe_agreement(3e-6) == "to 3e-06"


def test_right_attention_passes_and_hands_back_the_report():
    assert assert_attention(F.scaled_dot_product_attention).ok


def test_wrong_attention_fails_with_the_diagnosis():
    with pytest.raises(AssertionError, match="softmax-over-queries"):
        assert_attention(lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -2) @ v)


def test_options_are_handed_on():
    with pytest.raises(AssertionError, match="no-mask"):
        assert_attention(F.scaled_dot_product_attention, causal=True, is_causal=False)


TEST = """
import torch
from regard.testing import assert_attention

def test_wrong():
    assert_attention(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)

def test_undecided():
    assert_attention(torch.nn.Conv1d(4, 4, 3))

def test_cannot_run():
    assert_attention(lambda q, k, v: undefined)
"""


@pytest.mark.at_length("test_wrong_attention_fails_with_the_diagnosis")
@pytest.mark.parametrize("style", share(["auto", "native"], 2))
def test_a_failing_test_shows_the_report_and_no_frame_of_ours(tmp_path, style):
    (tmp_path / "test_mine.py").write_text(TEST)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", f"--tb={style}"]
    source = str(Path(regard.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout
    assert "3 failed" in run.stdout
    assert "is WRONG: no-scale" in run.stdout
    assert "fix: scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])" in run.stdout
    assert "name 'undefined' is not defined" in run.stdout
    if style != "native":  # Python's own traceback cannot hide a frame
        assert "regard/" not in run.stdout
    assert "During handling" not in run.stdout
