"""What identifies a mask and its answers: its classes and numbers, its tensors, and what its functions read.

A function counts by its code and by the values that `inspect.getclosurevars` finds: closures, globals and
defaults. Whether it computes nothing but an answer is not looked at: that a rule's function is pure is a
promise of its author (see `rule`). A function that reads anything else than numbers, strings, tensors, masks,
tuples of these, `torch`, `math` and other functions has no identity, and is asked in every call.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.masks.base import Mask

LARGE = 1 << 24
"""Bytes of a tensor from which on its values are not compared."""
MAX_DEPTH = 4
"""How deep functions may call each other, so that one that calls itself ends."""
CONSTANTS = (bool, int, str, NoneType, torch.dtype, torch.device, BuiltinFunctionType)


def identify(value: Any, tensors: list[Tensor], depth: int = MAX_DEPTH) -> Hashable | None:
    """What identifies a mask, one of its fields or a value that a function reads, or None if nothing does.

    Tensors are added to `tensors`: an identity is good for as long as they live.
    """
    if isinstance(value, Tensor):
        return _identify_tensor(value, tensors)
    if type(value) is FunctionType:
        return _identify_function(value, tensors, depth)
    if isinstance(value, Mask):
        kind: Any = type(value)
        if not is_dataclass(kind) or not kind.__module__.startswith("regard."):  # it may do anything
            return None
        value = (kind, *(getattr(value, field.name) for field in fields(kind)))
    if isinstance(value, slice):
        value = (slice, value.start, value.stop, value.step)
    if isinstance(value, tuple):
        parts = tuple(identify(part, tensors, depth) for part in value)
        return None if None in parts else (type(value), parts)
    if isinstance(value, float):
        return float, value.hex()  # 0.0 == −0.0
    is_constant = type(value) in CONSTANTS or isinstance(value, type) or value is torch or value is math
    return (type(value), value) if is_constant else None


def _identify_tensor(tensor: Tensor, tensors: list[Tensor]) -> Hashable | None:
    """What identifies a tensor and its values, or None if nothing does.

    A tensor of a CPU, unless it is large, counts by its values, which NumPy may change unseen; any other by
    PyTorch's number of its modifications, which leaves out writes to its `.data` or through DLPack. Nothing
    identifies a tensor that requires gradients, since fused optimizers do not count their modifications, nor
    one of inference mode.
    """
    if tensor.is_inference() or tensor.requires_grad:
        return None
    values = b""
    if tensor.is_cpu and type(tensor) is Tensor and tensor.nbytes <= LARGE:
        try:
            data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
            values = blake2b(data.tobytes(), digest_size=16).digest()
        except RuntimeError:  # a wrapper of torch.func has no values
            return None
    tensors.append(tensor)
    return id(tensor), tensor._version, values


def _identify_function(function: FunctionType, tensors: list[Tensor], depth: int) -> Hashable | None:
    """What identifies a function by its code and what it reads, or None if nothing does."""
    code = function.__code__
    # Python 3.11's getclosurevars does not look into functions that are made inside of a function.
    makes_functions = any(isinstance(constant, CodeType) for constant in code.co_consts)
    if is_compiling() or not depth or makes_functions:
        return None
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # a variable of the function around it that has no value yet
        return None
    read = (
        (*variables.nonlocals.items(), *variables.globals.items()),
        function.__defaults__ or (),
        (*(function.__kwdefaults__ or {}).items(),),
    )
    values = identify(read, tensors, depth - 1)
    # Python's floats become tensors of the default dtype.
    return None if values is None else (code, torch.get_default_dtype(), values)


def freeze_function(function: FunctionType, copy_tensor: Callable[[Tensor], Tensor]) -> FunctionType:
    """A function with an identity, with its variables as they are now, for good, and copies of tensors."""
    variables = inspect.getclosurevars(function)
    if not (variables.globals or function.__closure__ or function.__defaults__ or function.__kwdefaults__):
        return function

    def freeze(value: Any) -> Any:
        if isinstance(value, Tensor):
            return copy_tensor(value)
        if type(value) is tuple:
            return tuple(map(freeze, value))
        return freeze_function(value, copy_tensor) if type(value) is FunctionType else value

    scope = {name: freeze(value) for name, value in variables.globals.items()}
    frozen = FunctionType(
        function.__code__,
        scope | {"__builtins__": function.__globals__.get("__builtins__", {})},
        function.__name__,
        freeze(function.__defaults__),
        tuple(CellType(freeze(cell.cell_contents)) for cell in function.__closure__ or ()),
    )
    frozen.__kwdefaults__ = {name: freeze(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return frozen
