"""`regard check` and `regard explain-mistake` from a shell: exit codes, JSON, the catalogue."""

import json
import runpy
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import TEMPLATES
from regard.cli import app
from tests.sampling import share

FUNCTION, HEAD = TEMPLATES["function"], TEMPLATES["head"]


def run(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def folder(tmp_path, monkeypatch, in_this_process):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head.py").write_text(HEAD)
    (tmp_path / "wrong.py").write_text(FUNCTION.replace("dim=-1)", "dim=-2)"))
    return tmp_path


def test_right_is_zero(folder):
    result = run("check", "head.py:CausalHead", "--with", "d_model=64", "head_size=16", "max_len=8")
    assert result.exit_code == 0, result.output
    assert "one head of 16" in result.output
    assert "is right" in result.output


def test_wrong_is_one_and_json_is_json(folder):
    result = run("check", "wrong.py:attention", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["diagnoses"][0]["name"] == "softmax-over-queries"


def test_what_cannot_be_checked_is_two(folder):
    assert run("check", "nowhere.py:X").exit_code == 2
    assert run("check").exit_code == 2
    assert run("check", "head.py:CausalHead", "--with", "=3").exit_code == 2
    result = run("check", "nowhere.py:X", "--json")
    assert result.exit_code == 2
    assert "no file" in json.loads(result.stdout)["error"]


def test_the_catalogue_lists_every_mistake():
    result = run("check", "--list")
    assert result.exit_code == 0
    assert all(name in result.output for name in CATALOGUE)
    listed = json.loads(run("check", "--list", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(CATALOGUE)


@pytest.mark.at_length("test_the_catalogue_lists_every_mistake")
def test_a_mistake_is_explained_with_an_example_that_runs(tmp_path, capsys):
    result = run("explain-mistake", "softmax-over-queries")
    assert result.exit_code == 0
    assert "-     weights = torch.softmax(scores, dim=-2)\n" in result.output
    assert "+     weights = torch.softmax(scores, dim=-1)\n" in result.output
    assert len(result.output.splitlines()) <= 34
    test = run("explain-mistake", "softmax-over-queries", "--test").stdout
    assert "def test_" in test
    compile(test, "test_mine.py", "exec")
    code = run("explain-mistake", "no-scale", "--code").stdout
    (tmp_path / "example.py").write_text(code)
    runpy.run_path(str(tmp_path / "example.py"), run_name="__main__")
    assert "no-scale" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "meant"), [("no-scal", "no-scale"), ("document-leak", "documents-leak")])
def test_a_name_that_is_unknown_is_answered_with_its_neighbours(word, meant):
    result = run("explain-mistake", word)
    assert f"no mistake called {word!r}: did you mean {meant}" in str(result.exception)


@pytest.mark.at_length("test_wrong_is_one_and_json_is_json")
@pytest.mark.parametrize("options", share([["--json"], []], 2))
def test_a_reader_that_stops_does_not_change_the_exit_code(folder, options):
    command = [sys.executable, "-m", "regard", "check", "wrong.py:attention", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        message = process.stderr.read()
    assert process.returncode == 1
    assert b"Error" not in message
