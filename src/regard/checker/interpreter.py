"""Kernels without a GPU.

Triton's interpreter runs kernels on the CPU: `TRITON_INTERPRET=1 regard check kernel.py:attend`. This file
repairs it for the NumPy that is installed, and imports Triton only if kernels are interpreted.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def is_interpreting() -> bool:
    """Return whether Triton is imported, and interprets the kernels that are defined from now on."""
    return "triton" in sys.modules and os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def prepare_interpreter() -> None:
    """Make Triton's interpreter work with NumPy 2.4, if kernels are interpreted and it does not yet.

    Triton 3.6 turns a tensor of one element into an index by `int(array)`, an array of shape (1,). NumPy 2.4
    raises a TypeError for that: "only 0-dimensional arrays can be converted to Python scalars".
    """
    if not is_interpreting():
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    # An earlier check has repaired it.
    if hasattr(patch_tensor, "before_regard"):
        return

    def patch_tensor_for_numpy(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    patch_tensor_for_numpy.before_regard = patch_tensor  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch_tensor_for_numpy
