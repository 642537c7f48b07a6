"""Checkpoints: what was put in comes out, bit for bit, and what is not one is refused by name."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.gpt.training import checkpoints
from regard.gpt.training.optimizer import Muon, adamw


def trained(seed: int) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4, bias=False))
    optimizers = make_optimizers(model)
    for _ in range(3):
        model(torch.randn(2, 3)).pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizers


def make_optimizers(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    by_adamw = [*model[0].parameters(), *model[1].parameters()]
    return [adamw(by_adamw, weight_decay=0.1, betas=(0.9, 0.99)), Muon(list(model[2].parameters()))]


def load(folder: Path) -> checkpoints.Checkpoint:
    checkpoint = checkpoints.load(folder)
    assert checkpoint is not None
    return checkpoint


def test_a_round_trip_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    model, optimizers = trained(0)
    checkpoints.save(tmp_path, model, optimizers, {"step": 3, "best": 1.25})
    again, its = trained(1)
    checkpoint = load(tmp_path)
    checkpoints.restore(checkpoint.tensors, again, its)
    assert checkpoint.state == {"step": 3, "best": 1.25}
    x = torch.randn(2, 3)
    for one, moves in ((model, optimizers), (again, its)):
        one(x).sum().backward()
        for optimizer in moves:
            optimizer.step()
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    checkpoints.save(tmp_path, *trained(0), {"step": 3})
    path = tmp_path / checkpoints.FILE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a complete safetensors file"):
        checkpoints.load(tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, *trained(0), {})
    tensors = load(tmp_path).tensors
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(4, 4, bias=False))
    with pytest.raises(ValueError, match=r"expected model\.0\.bias \(5,\), got \(4,\)"):
        checkpoints.restore(tensors, model, make_optimizers(model))


def test_a_folder_that_is_gone_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write a checkpoint to .*gone"):
        checkpoints.save(tmp_path / "gone", *trained(0), {})


@pytest.mark.parametrize("header_bytes", [(1 << 40) - 8, None])
def test_a_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path: Path, header_bytes: int | None) -> None:
    header = b'{"__metadata__":{"sha256":"' + b"0" * 64 + b'"}}'
    path = tmp_path / checkpoints.FILE
    path.write_bytes((header_bytes or len(header)).to_bytes(8, "little") + header)
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        checkpoints.load(tmp_path)
