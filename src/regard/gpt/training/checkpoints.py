"""The checkpoint of a training run: one safetensors file, with JSON in its header for all that is no tensor.

It is written atomically: whenever the process is killed, a complete checkpoint is there. Random states are
not saved: the draws of a step depend only on the seed and on its number. The checkpoint carries the length of
the run's history, and the weights of the best model, so that a resumed run does not depend on what became of
the model's own files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.gpt.training import history
from regard.support.files import RunFileError, get_field, is_present, naming_errors, parse_object
from regard.support.safetensor_files import read_safetensors, write_safetensors

FILE = "checkpoint.safetensors"
FORMAT = "regard.training 4"
# What an optimizer keeps of a weight.
# As torch.optim.AdamW (fused) and our Muon name them.
MOMENTS = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum",)}
MODEL, BEST = "model.", "best."  # before the names of the weights, and of those of the best model


class Checkpoint(NamedTuple):
    """A checkpoint as it was saved."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    history: dict[str, Any]
    """The sizes of the run's history when it was saved."""


def save(
    folder: Path,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    state: dict[str, Any],
    best: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the weights, the optimizers' moments and `state`, which is plain data, to a folder.

    `best` are the weights of the best model, unless the model itself is the best. An OSError says why it
    could not be written.
    """
    tensors = {f"{MODEL}{name}": x for name, x in model.state_dict().items()}
    tensors |= {f"{BEST}{name}": x for name, x in (best or {}).items()}
    for optimizer in optimizers:
        for name, weight in _optimized_weights(model, optimizer):
            for kind, x in optimizer.state.get(weight, {}).items():
                tensors[f"optimizer.{kind}.{name}"] = x
    header = {
        "format": FORMAT,
        "state": json.dumps(state),
        "history": json.dumps(history.sizes(folder)),
    }
    try:
        write_safetensors(folder / FILE, tensors, header)
    except (OSError, ValueError) as error:
        raise OSError(f"cannot write a checkpoint to {folder}: {error}") from None


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder, beside a history that goes so far; None if there is none.

    A `RunFileError` says why it cannot be used.
    """
    path = folder / FILE
    if not is_present(path):
        return None
    content = read_safetensors(path, [FORMAT], RunFileError)
    with naming_errors(path, RunFileError, " is not a checkpoint that can be read"):
        state, sizes = (parse_object(get_field(content.metadata, name, str)) for name in ("state", "history"))
        history.check(folder, sizes)
    return Checkpoint(content.tensors, state, sizes)


def restore(
    tensors: dict[str, Tensor], model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Load the tensors of a checkpoint into a model and its optimizers.

    A `RunFileError` names the first tensor whose shape differs.
    """
    for name, x in tensors.items():
        if not x.is_floating_point() or x.itemsize < 2:
            raise RunFileError(f"checkpoint: expected floats for {name}, got {x.dtype}")
    model.load_state_dict(_weights(tensors, MODEL, model))

    for optimizer in optimizers:
        _restore_moments(tensors, model, optimizer)


def _restore_moments(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load an optimizer's moments, numbered as it numbers its weights."""
    kinds = MOMENTS[type(optimizer).__name__]
    groups = optimizer.state_dict()["param_groups"]
    moments: dict[int, dict[str, Tensor]] = {}
    for number, (name, weight) in enumerate(_optimized_weights(model, optimizer)):
        state = {
            kind: tensors[key].clone()  # not a view of the file, which the next checkpoint replaces
            for kind in kinds
            if (key := f"optimizer.{kind}.{name}") in tensors
        }
        for kind, x in state.items():
            want = () if kind == "step" else tuple(weight.shape)
            if len(state) != len(kinds) or tuple(x.shape) != want:
                raise RunFileError(
                    f"checkpoint: expected {', '.join(kinds)} of {name}, {kind} {want}, "
                    f"got {', '.join(state)}, {kind} {tuple(x.shape)}"
                )
        if state:
            moments[number] = state
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def best_weights(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights of the best model in the tensors of a checkpoint, which may be those of the model itself.

    A `RunFileError` names the first one whose shape differs.
    """
    # A model that is itself the best is not stored twice.
    prefix = BEST if any(name.startswith(BEST) for name in tensors) else MODEL
    return {name: x.clone() for name, x in _weights(tensors, prefix, model).items()}


def _weights(tensors: Mapping[str, Tensor], prefix: str, model: nn.Module) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, if they are weights of a model."""
    stored = {name: x for name, x in tensors.items() if name.startswith(prefix)}
    expected = {f"{prefix}{name}": x for name, x in model.state_dict().items()}
    for name in sorted(stored.keys() | expected.keys()):
        want, got = (tuple(side[name].shape) if name in side else None for side in (expected, stored))
        if want != got:
            raise RunFileError(f"checkpoint: expected {name} {want}, got {got}: is it of another model?")
    return {name.removeprefix(prefix): x for name, x in stored.items()}


def _optimized_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The names and weights of the model, in the optimizer's order."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            yield names[id(weight)], weight
