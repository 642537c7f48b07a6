"""`regard audit` and `regard masks`: exit codes, JSON, pages, and what a user can get wrong."""

import dataclasses
import json
import sys
from subprocess import CompletedProcess

import pytest
import torch

from regard.auditor import audit
from regard.auditor.batch import sample_batches
from regard.auditor.picture import Section, cells_of, page
from regard.cli import main
from tests.auditor.small_models import new_model, padded, small_model

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
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "train.py"
    path.write_text(SCRIPT, "utf-8")
    return path


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command as a shell does, where `main` answers a user's mistake, and leaves nothing changed."""
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return CompletedProcess(words, int(end.value.code or 0), *capsys.readouterr())

    yield run
    sys.modules.pop("checked_train", None)


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("wrong", 1), ("undecided", 3)])
def test_the_exit_code_says_the_verdict(run, script, name, code):
    result = run("audit", f"{script}:{name}")
    assert result.returncode == code, result.stdout + result.stderr
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
def test_what_cannot_be_run_is_two_and_one_line(run, script, name, said):
    result = run("audit", f"{script}:{name}")
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stdout == ""


def test_a_report_names_the_mistake_its_cause_and_its_fix(run, script):
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


def test_json_is_json(run, script):
    result = run("audit", f"{script}:wrong", "--json")
    data = json.loads(result.stdout)
    assert result.returncode == 1
    assert (data["verdict"], data["ok"]) == ("wrong", False)
    assert data["diagnoses"][0]["name"] == "documents-leak"
    assert data["layers"][0]["wrong"]["documents"] == {"cells": 24, "first": [0, 4, 0]}
    assert len(data["layers"][0]["shares"]["documents"]) == 2


def test_nothing_is_changed_from_outside_if_not_wanted(run, script):
    data = json.loads(run("audit", f"{script}:wrong", "--no-outside", "--json").stdout)
    assert data["outside"]["runs"] == 0
    assert data["verdict"] == "wrong"


def test_a_page_shows_every_mask_and_needs_nothing_else(run, script, tmp_path):
    page = tmp_path / "page.html"
    assert run("audit", f"{script}:wrong", "--out", page).returncode == 1
    text = page.read_text("utf-8")
    assert "documents-leak" in text
    assert text.count("<img") == 1  # both layers see the same
    assert "http://" not in text
    assert "https://" not in text


def test_masks_are_drawn_with_what_leaks(run, script, tmp_path):
    result = run("masks", f"{script}:wrong", "--out", tmp_path / "masks.html")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "layers 0, 1: causal"
    assert lines[1] == "text 0"
    assert lines[2] == "██" + "··" * 9
    assert lines[6] == "XX" * 4 + "██" + "··" * 5
    assert lines[-1].startswith("Queries run down, keys across.")
    assert (tmp_path / "masks.html").exists()


def test_masks_of_a_model_without_attention_say_so(run, script):
    result = run("masks", f"{script}:undecided")
    assert result.returncode == 0
    assert "nothing was heard from inside" in result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of two kinds of layers in a folder, without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    new_model("Gemma 3").save_pretrained(folder)
    return folder


def test_masks_of_a_model_are_drawn_on_a_plain_a_padded_and_a_packed_text(run, folder, tmp_path):
    page = tmp_path / "masks.html"
    result = run("masks", folder, "--tokens", 9, "--out", page)
    assert result.returncode == 0, result.stdout + result.stderr
    plain, padded, packed = result.stdout.split("## ")[1:]
    assert plain.startswith("a plain text\n\nlayers 0, 2: causal & window(4)\ntext 0\n██····")
    assert "layers 1, 3: causal & padding(1×9)\ntext 0\n" in padded
    assert "layers 1, 3: causal & documents(1×9)\n" in packed
    assert "X" not in packed.rpartition("\n\n")[0]
    assert page.read_text("utf-8").count("<img") == 6


def test_masks_of_the_included_model_and_of_an_encoder(run):
    assert "layers 0, 1, 2, 3, 4, 5: causal & documents(1×6)" in run("masks", "default", "--tokens", 6).stdout
    batches = sample_batches(small_model("T5"), 6)
    assert batches.keys() == {"plain", "padded"}
    assert {layer.kind for layer in audit(small_model("T5"), batches["padded"]).layers} == {
        "encoder",
        "cross",
        "self",
    }


def test_a_page_judges_no_padding_and_names_a_single_layer():
    seen = audit(small_model("Llama", "eager"), padded("left"), outside=False)
    layer = seen.layers[0]
    padding = dataclasses.replace(layer, real=torch.zeros_like(layer.real, dtype=torch.bool))
    inverted = dataclasses.replace(padding, expected_mask=~layer.expected_mask)
    assert set(cells_of(inverted, 12)[0].flatten().tolist()) == {0, 1}
    assert page("Llama", [Section("", "", "", [[layer]])]).count("Layer 0, text 0: ") == 2


def test_a_mistake_of_both_catalogues_is_explained_with_its_program(run):
    assert "batch-items-mixed: attention in which" in run("explain-mistake", "batch-items-mixed").stdout
    assert "def forward" in run("explain-mistake", "batch-items-mixed", "--code").stdout
    assert "padding-seen: the model sees padding" in run("explain-mistake", "padding-seen").stdout
