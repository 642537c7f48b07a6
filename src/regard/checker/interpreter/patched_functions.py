"""Finds functions of PyTorch that other code has replaced: the oracle would compute with them too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import torch

PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
PLACES: dict[str, ModuleType | type] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Linear": torch.nn.Linear,
    "torch.linalg": torch.linalg,
}


def patched_functions() -> Iterator[str]:
    """Yield the names of public functions of PyTorch whose code is in no file of PyTorch's or of Regard's."""
    for place, owner in PLACES.items():
        for name, value in list(vars(owner).items()):
            if not name.startswith("_") and _is_foreign(value):
                yield f"{place}.{name}"


def _is_foreign(value: object) -> bool:
    """Return whether a function was written elsewhere; those of PyTorch that are not Python have no code."""
    if not isinstance(value, FunctionType):
        return False
    return not value.__code__.co_filename.startswith(PACKAGES)
