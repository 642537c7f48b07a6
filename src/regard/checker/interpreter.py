"""Kernels without a GPU, and functions of PyTorch that other code has replaced.

Triton's interpreter runs kernels on the CPU: `TRITON_INTERPRET=1 regard check kernel.py:attend`. This file
repairs it for the NumPy that is installed, and finds out what it computes wrongly by itself. It imports
Triton only if kernels are interpreted.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FunctionType
from typing import Any

import torch

# What the oracle computes with. None of these is written in Python.
_ORACLE = ("softmax", "logsumexp", "tanh", "cat", "where", "matmul")


def patched_functions() -> list[str]:
    """Return the names of functions that the oracle computes with, and whose code is not PyTorch's own."""
    return [f"torch.{name}" for name in _ORACLE if isinstance(getattr(torch, name), FunctionType)]


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


@functools.cache
def has_wrong_bfloat16() -> bool:
    """Return whether kernels are interpreted and the interpreter multiplies two bfloat16 numbers wrongly.

    Triton 3.6 does: it stores bfloat16 as uint16, which NumPy has, and multiplies those.
    """
    if not is_interpreting():
        return False
    from regard.checker.interpreted_product import multiply

    # Both numbers and their product are exact in bfloat16.
    a, b = (torch.tensor([x], dtype=torch.bfloat16) for x in (1.5, -2.5))
    product = torch.zeros(1, dtype=torch.bfloat16)
    multiply[(1,)](a, b, product)
    return float(product) != -3.75
