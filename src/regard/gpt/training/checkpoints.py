"""The checkpoint of a training run: one safetensors file, with JSON in its header for all that is no tensor.

The file is written atomically, so that it holds either the old state or the new one whenever the run is
killed. Random states are not saved: the draws of a step depend only on the seed and on its number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard.files import RunFileError, get_field, parse_object
from regard.safetensor_files import read_safetensors, write_safetensors

FILE = "checkpoint.safetensors"
FORMAT = "regard.training 2"


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write the weights, the optimizer's moments and `state`, which is plain data, to a folder.

    An OSError says why it could not be written.
    """
    tensors = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name, weight in _optimized_weights(model, optimizer):
        for kind, x in optimizer.state.get(weight, {}).items():
            tensors[f"optimizer.{kind}.{name}"] = x
    header = {"format": FORMAT, "state": json.dumps(state)}
    try:
        write_safetensors(folder / FILE, tensors, header)
    except (SafetensorError, OSError, ValueError) as error:
        raise OSError(f"cannot write a checkpoint to {folder}: {error}") from None


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the state in a folder; None if it has no checkpoint.

    A `RunFileError` says why a checkpoint cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        header, tensors = read_safetensors(path, [FORMAT], RunFileError)
        return tensors, parse_object(get_field(header, "state", str))
    except ValueError as error:
        raise RunFileError(f"{path} is not a checkpoint that can be read: {error}") from None


def restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the tensors of a checkpoint into a model and its optimizer.

    A `RunFileError` names the first tensor whose shape differs.
    """
    stored = {name: x for name, x in tensors.items() if name.startswith("model.")}
    expected = {f"model.{name}": x for name, x in model.state_dict().items()}
    for name in sorted(stored.keys() | expected.keys()):
        want, got = (tuple(side[name].shape) if name in side else None for side in (expected, stored))
        if want != got:
            raise RunFileError(f"checkpoint: expected {name} {want}, got {got}: is it of another model?")
    for name, x in tensors.items():
        if not x.is_floating_point() or x.itemsize < 2:
            raise RunFileError(f"checkpoint: expected floats for {name}, got {x.dtype}")
    model.load_state_dict({name.removeprefix("model."): x for name, x in stored.items()})

    # The moments, numbered as the optimizer numbers its weights.
    groups = optimizer.state_dict()["param_groups"]
    moments: dict[int, dict[str, Tensor]] = {}
    for number, (name, weight) in enumerate(_optimized_weights(model, optimizer)):
        state = {
            kind: tensors[key].clone()  # not a view of the file, which the next checkpoint replaces
            for kind in ("step", "exp_avg", "exp_avg_sq")
            if (key := f"optimizer.{kind}.{name}") in tensors
        }
        for kind, x in state.items():
            want = () if kind == "step" else tuple(weight.shape)
            if len(state) != 3 or tuple(x.shape) != want:
                raise RunFileError(
                    f"checkpoint: expected step, exp_avg and exp_avg_sq of {name}, {kind} {want}, "
                    f"got {', '.join(state)}, {kind} {tuple(x.shape)}"
                )
        if state:
            moments[number] = state
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _optimized_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The names and weights of the model, in the optimizer's order."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            yield names[id(weight)], weight
