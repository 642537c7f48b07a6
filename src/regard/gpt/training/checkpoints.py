"""The state of a training run on disk: one safetensors file, with what is not a tensor as JSON in its header.

One file, written beside its place and then moved there, is either the old state or the new one, whenever the
run is killed. Random states need no room: every step draws from the seed and its own number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard.safetensor_files import read_safetensors, write_safetensors

FILE = "checkpoint.safetensors"
FORMAT = "regard.training 1"


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, the optimizer's moments and `state`, which is plain data; OSError if it cannot be."""
    tensors = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name, weight in _moving(model, optimizer):
        for kind, x in optimizer.state.get(weight, {}).items():
            tensors[f"optimizer.{kind}.{name}"] = x
    header = {"format": FORMAT, "state": json.dumps(state)}
    try:
        write_safetensors(folder / FILE, tensors, header)
    except (SafetensorError, OSError, ValueError) as error:
        raise OSError(f"cannot write a checkpoint to {folder}: {error}") from None


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the state of a run, or None if the folder holds none; ValueError if it is damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        header, tensors = read_safetensors(path, [FORMAT])
        return tensors, json.loads(header["state"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint that can be read: {error}") from None


def restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put tensors from `load` back where `save` took them from; ValueError names what does not fit."""
    weights = {name: x for name, x in tensors.items() if name.startswith("model.")}
    wanted = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name in sorted(weights.keys() | wanted.keys()):
        shapes = [tuple(found[name].shape) if name in found else None for found in (wanted, weights)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"checkpoint: expected {name} {shapes[0]}, got {shapes[1]}: another model's?")
    model.load_state_dict({name.removeprefix("model."): x for name, x in weights.items()})
    groups = optimizer.state_dict()["param_groups"]
    moments: dict[int, dict[str, Tensor]] = {}
    for number, (name, _) in enumerate(_moving(model, optimizer)):
        found = {
            kind: tensors[key].clone()  # not a view into the file, which the next checkpoint replaces
            for kind in ("step", "exp_avg", "exp_avg_sq")
            if (key := f"optimizer.{kind}.{name}") in tensors
        }
        if found:
            moments[number] = found
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _moving(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The weights in the optimizer's order, with their names."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            yield names[id(weight)], weight
