"""Checks of single tensors, shared by every part of the package: ordinary tensors pass, odd ones do not.

Each check returns the tensor or raises a ValueError that names the argument, what was expected, what it got
and how to convert it. Sparse, quantised, nested and 8-bit tensors would otherwise fail deep inside PyTorch,
or give wrong numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.support.torch_internals import is_batched_tensor, is_transformed_tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tensor(name: str, x: object, *, values: bool = True) -> Tensor:
    """Return `x` if it is an ordinary tensor; if `values`, one whose numbers can be read.

    >>> check_tensor("q", [1.0])
    Traceback (most recent call last):
    ValueError: q: expected a torch.Tensor, got list
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if not torch.compiler.is_compiling() and (reason := _oddity(x)) is not None:
        raise ValueError(f"{name}: expected an ordinary dense tensor, got {reason}")
    if values and x.is_meta:
        raise ValueError(f"{name}: expected a tensor with values, got one on the meta device")
    if values and is_transformed(x) and is_batched_tensor(x):
        raise ValueError(f"{name}: expected a tensor with values, got one that torch.func.vmap maps over")
    return x


def check_floats(name: str, x: object, *, values: bool = True) -> Tensor:
    """Return `x` if it is an ordinary tensor of one of the `FLOATS`."""
    x = check_tensor(name, x, values=values)
    if x.dtype not in FLOATS:
        convert = ".real" if x.dtype.is_complex else ".float()"
        raise ValueError(
            f"{name}: expected a floating-point tensor of 16, 32 or 64 bits, got {x.dtype}: pass {convert}"
        )
    return x


def as_tensor(name: str, x: object, expected: str) -> Tensor:
    """Return `x`, a tensor or a list of numbers, as an ordinary tensor; an error says what is `expected`."""
    if isinstance(x, Tensor):
        return check_tensor(name, x)
    try:
        tensor = torch.as_tensor(x, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}: expected {expected}, got {type(x).__name__}") from None
    return tensor if tensor.numel() else tensor.long()  # torch.as_tensor([]) is of floats


def check_whole_numbers(name: str, x: object, expected: str = "whole numbers") -> Tensor:
    """Return `x`, a tensor or a list, as an ordinary tensor of whole numbers; an error says `expected`."""
    x = as_tensor(name, x, expected)
    if x.dtype not in WHOLE_NUMBERS:
        raise ValueError(f"{name}: expected {expected}, got {tuple(x.shape)} {x.dtype}")
    return x


def is_transformed(x: Tensor) -> bool:
    """Whether a tensor stands for several inside `torch.func.vmap`, or is differentiated by `torch.func`."""
    return not torch.compiler.is_compiling() and is_transformed_tensor(x)


def _oddity(x: Tensor) -> str | None:
    """What makes a tensor unlike those that attention computes with, and how to convert it; or None."""
    if x.is_nested:
        return "a nested one: pass torch.nested.to_padded_tensor(x, 0.0) and mask=regard.padding(lengths)"
    if x.layout is not torch.strided:
        return f"{str(x.layout).removeprefix('torch.')}: pass .to_dense()"
    if x.is_quantized:
        return f"{x.dtype}: pass .dequantize()"
    # DTensor, FakeTensor and quantised types of torchao override it: their arithmetic is not PyTorch's.
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a {type(x).__name__}, which computes in its own way: pass its values as a torch.Tensor"
    return None
