"""Files that earlier versions wrote stay readable: docs/promise.md."""

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.gpt import GPT
from regard.gpt.training import checkpoints
from regard.gpt.training.history import read_run
from regard.heads.corpus_survey.survey_result import read_survey
from regard.monitor import MonitorHistory
from regard.monitor.page_curves import read_curves
from regard.recorder import Capture

KEPT = Path(__file__).parent
VERSIONS = sorted(path.name for path in KEPT.iterdir() if path.name[0].isdigit())

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def test_captures_and_maps(version):
    seen, m = regard.load(KEPT / version / "capture"), regard.load(KEPT / version / "map.safetensors")
    assert isinstance(seen, Capture)
    assert isinstance(m, regard.AttentionMap)
    assert seen.certificate.certified
    assert [layer.name for layer in seen.layers] == ["blocks.0.attention", "blocks.1.attention"]
    weights = seen[1].to_dense()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 12))
    assert torch.equal(m.to_dense(), weights)
    assert seen.layers[0].values is not None


def test_a_run_its_history_and_its_monitor(version, tmp_path):
    folder = shutil.copytree(KEPT / version / "run", tmp_path / "run")  # a run's folder is locked while read
    model = GPT.from_pretrained(folder)
    assert model(torch.arange(8)[None]).shape == (1, 8, model.config.vocab_size)
    found = checkpoints.load(folder)
    assert any(name.startswith(checkpoints.MODEL) for name in found.tensors)
    assert read_run(folder)["steps"] == [0, 2, 4]
    assert MonitorHistory.read(folder / "attention.jsonl").layers == ["0"]
    assert read_curves(folder / "attention.jsonl")["steps"] == [0]


def test_a_survey(version):
    found = read_survey(KEPT / version / "survey.csv")
    assert len(found.table) == 2
    assert len(found.examples) == 1  # layers
