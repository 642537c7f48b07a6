"""Checkpoints: what was put in comes out, bit for bit, and what is not one is refused by name."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.gpt.training import checkpoints
from regard.gpt.training.optimizer import Muon, adamw
from regard.support import checkpoint_files
from tests.sampling import share


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
    assert checkpoint.problem is None
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
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a checkpoint that can be read"):
        checkpoints.load(tmp_path)


def test_a_flipped_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    """In the header and in the tensors: some bytes of the file, or every one."""
    checkpoints.save(tmp_path, *trained(0), {"step": 3})
    path, draw = tmp_path / checkpoints.FILE, random.Random(0)
    good = path.read_bytes()
    for position in share(range(len(good)), 41):
        path.write_bytes(
            good[:position] + bytes([good[position] ^ 1 << draw.randrange(8)]) + good[position + 1 :]
        )
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a checkpoint that can be read"):
            checkpoints.load(tmp_path)
    path.write_bytes(good)
    assert load(tmp_path).state == {"step": 3}


def test_the_previous_checkpoint_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.FILE
    for step in (1, 2):
        checkpoints.save(tmp_path, *trained(step), {"step": step})
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    checkpoint = load(tmp_path)
    assert checkpoint.state == {"step": 1}
    problem = checkpoint.problem or ""
    assert "its bytes do not have the checksum" in problem
    assert problem.endswith("checkpoint.safetensors.previous, the checkpoint before it, is used instead")
    # The damaged one never takes the place of the good one before it.
    checkpoints.save(tmp_path, *trained(3), {"step": 3})
    path.unlink()
    assert load(tmp_path).state == {"step": 1}


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_kill_at_any_moment_of_a_save_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Before each of the three renames of a save: of the new file, of the old one, of the new one again."""
    for step in (1, 2):
        checkpoints.save(tmp_path, *trained(step), {"step": step})
    rename, renames = os.replace, itertools.count()

    def killed_before(*paths: Path) -> None:
        if next(renames) >= moment:
            raise KilledError
        rename(*paths)

    monkeypatch.setattr(os, "replace", killed_before)
    with pytest.raises(KilledError):
        checkpoints.save(tmp_path, *trained(3), {"step": 3})
    monkeypatch.undo()
    assert load(tmp_path).state == {"step": 2}
    assert load(tmp_path).problem is None


class KilledError(BaseException):
    """Stands for whatever ends a process."""


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
    with pytest.raises(ValueError, match="is not a checkpoint that can be read"):
        checkpoints.load(tmp_path)


def test_what_a_killed_process_left_is_removed_with_the_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "survey.csv.partial"
    for name in (path.name, ".survey.csv.partial.new"):
        (tmp_path / name).touch()
    (tmp_path / "..survey.csv.partial.new.ab3_x9zq").mkdir()  # as `atomic_write` leaves it
    checkpoint_files.remove(path)
    assert not list(tmp_path.iterdir())
