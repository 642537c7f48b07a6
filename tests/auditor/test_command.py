"""`regard audit` and `regard masks`: exit codes, JSON, pages, and what a user can get wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from regard.auditor.result import Audit
from regard.cli import app

SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes))
ids = torch.arange(3, 13)[None]
packed = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])}

def right():
    return model, packed | {"use_cache": False}

def wrong():
    return model, packed | {"attention_mask": torch.ones_like(ids)}

class Unknown(torch.nn.Module):
    def forward(self, input_ids):
        return torch.nn.functional.one_hot(input_ids, 32).float()

def undecided():
    return Unknown(), ids

def raises():
    return {}["model"]

def fails():
    return model, torch.full((1, 4), 99)

number = 3
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "train.py"
    path.write_text(SCRIPT, "utf-8")
    return path


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command runs the script in its own process, which a test does not leave changed."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    sys.modules.pop("checked_train", None)


def run(command: str, *arguments: object) -> Result:
    result = CliRunner().invoke(app, [command, *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("wrong", 1), ("undecided", 3)])
def test_the_exit_code_says_the_verdict(script: Path, name: str, code: int) -> None:
    result = run("audit", f"{script}:{name}")
    assert result.exit_code == code, result.output
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raised KeyError: 'model' (train.py:"),
        ("fails", "LlamaForCausalLM does not run on this batch (input_ids): IndexError"),
        ("number", "expected (model, batch) or a Trainer, got int"),
        ("none", "none"),
    ],
)
def test_what_cannot_be_run_is_two_and_one_line(script: Path, name: str, said: str) -> None:
    result = run("audit", f"{script}:{name}")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_report_names_the_mistake_its_cause_and_its_fix(script: Path) -> None:
    report = run("audit", f"{script}:wrong").stdout
    for part in (
        "WRONG: documents-leak",
        "cause: ",
        "fix: ",
        "assumed: 2 documents",
        "✗ documents are apart",
    ):
        assert part in report
    assert max(map(len, report.splitlines())) <= 80


def test_json_is_json(script: Path) -> None:
    result = run("audit", f"{script}:wrong", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (data["verdict"], data["ok"]) == ("wrong", False)
    assert data["diagnoses"][0]["name"] == "documents-leak"
    assert data["layers"][0]["wrong"]["documents"] == {"cells": 24, "first": [0, 4, 0]}
    assert len(data["layers"][0]["shares"]["documents"]) == 2


def test_nothing_is_changed_from_outside_if_not_wanted(script: Path) -> None:
    data = json.loads(run("audit", f"{script}:wrong", "--no-outside", "--json").stdout)
    assert data["outside"]["runs"] == 0
    assert data["verdict"] == "wrong"


def test_a_page_shows_every_mask_and_needs_nothing_else(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("audit", f"{script}:wrong", "--out", page).exit_code == 1
    text = page.read_text("utf-8")
    assert "documents-leak" in text
    assert text.count("<img") == 1  # both layers see the same
    assert "http://" not in text
    assert "https://" not in text


def test_a_page_that_cannot_be_written_is_two(script: Path, tmp_path: Path) -> None:
    result = run("audit", f"{script}:wrong", "--out", tmp_path / "none" / "page.html")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


def test_masks_are_drawn_with_what_leaks(script: Path, tmp_path: Path) -> None:
    result = run("masks", f"{script}:wrong", "--out", tmp_path / "masks.html")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "layers 0, 1: causal"
    assert lines[1] == "text 0"
    assert lines[2] == "██" + "··" * 9
    assert lines[6] == "XX" * 4 + "██" + "··" * 5
    assert lines[-1].startswith("Queries run down, keys across.")
    assert (tmp_path / "masks.html").exists()


def test_masks_of_a_model_without_attention_say_so(script: Path) -> None:
    result = run("masks", f"{script}:undecided")
    assert result.exit_code == 0
    assert "nothing was heard from inside" in result.stdout


def test_an_empty_audit_prints() -> None:
    assert "reads what it should" in str(Audit("Model"))
