"""Reads which names the code of a module uses: of its class, and of functions that it calls by a global name.

It is a plain guess, by which layers are numbered before they run and what was not heard is named. What a
module computes is heard when it runs, wherever its code stands.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import fx, nn

from regard.attention.attend import attend
from regard.support.torch_internals import OpOverload

# The operator @ as this Python writes it in bytecode: an operation and its argument, a byte each.
_MATMUL = next(
    bytes((s.opcode, s.arg or 0))
    for s in dis.get_instructions(compile("a @ b", "", "eval"))
    if s.argrepr == "@"
)
HELD = (FunctionType, MethodType, functools.partial, torch.jit.ScriptFunction)
SIMPLE = (type(None), bool, int, float, str, type, dict, list, tuple, nn.Module, torch.Tensor)
"""Types of attributes that have no code of their own; modules are looked at one by one."""
EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
OTHERS = ("torch", "transformers.", "regard.", "builtins", "collections")
"""How the names of the files begin whose code is not followed from another file."""
ATTEND = "regard.attend"
"""Stands among the names for the function itself; other functions have its name as well."""
SCRIPT_NAMES = re.compile(r'aten::(\w+)|name="(\w+)"')  # of operators and functions in a graph of TorchScript


def function_name(function: Any) -> str:
    """Return the name of a torch function or operator, as "softmax" of `aten.softmax.int`."""
    # Objects that are called, such as partials, have no name.
    name = str(getattr(function, "__name__", ""))
    # Operators of exported graphs carry their overload: `softmax.int`.
    return name.partition(".")[0] if isinstance(function, OpOverload) else name


@functools.cache
def called_names(kind: Any) -> frozenset[str]:
    """Return the names in the code of a class's methods, and of the functions that they call.

    What the base classes of torch and Transformers do for every model is left out. The operator @ counts as
    the name "matmul".
    """
    bases = ("torch.", "transformers.modeling_utils", "builtins")
    classes = (base for base in kind.__mro__ if not base.__module__.startswith(bases))
    return _names_in(value for base in classes for value in vars(base).values())


def module_names(module: nn.Module) -> frozenset[str]:
    """Return the names in the code of a module: of its class, and of what it holds to compute for it.

    The modules of diffusers hold such an object, which they call their processor; others hold functions.
    """
    names = called_names(cast(Any, type(module)))
    for name, value in vars(module).items():
        if name in EVERY_MODULE or isinstance(value, SIMPLE):
            continue
        if isinstance(value, HELD):
            names |= _held_names(value)
        elif not type(value).__module__.startswith(OTHERS):
            names |= called_names(cast(Any, type(value)))
    return names


def has_graph(module: nn.Module) -> bool:
    """Whether a module of PyTorch's runs a graph that was made of other code."""
    return any(isinstance(value, fx.Graph) for value in vars(module).values())


def script_names(script: Any) -> frozenset[str]:
    """Return the names of the operators that a module or function of TorchScript calls."""
    try:
        graph = str(script.inlined_graph)
    except (AttributeError, RuntimeError):  # a module without a `forward`
        return frozenset()
    return frozenset(name for names in SCRIPT_NAMES.findall(graph) for name in names if name)


def _held_names(function: Any) -> frozenset[str]:
    """Return the names in a function that a module holds, but for those of torch and Transformers."""
    plain = function.func if isinstance(function, functools.partial) else function
    is_script = isinstance(plain, torch.jit.ScriptFunction)
    return _names_in([plain]) if is_script or plain is attend or _is_followed(plain) else frozenset()


def _names_in(functions: Iterable[Any]) -> frozenset[str]:
    """Return the names in the code of functions, and of the functions that they call."""
    names: set[str] = set()
    pending, visited = list(functions), set[CodeType]()
    while pending:
        function = pending.pop()
        if isinstance(function, torch.jit.ScriptFunction):
            names |= script_names(function)
            continue
        function = inspect.unwrap(function) if callable(function) else function
        if function is attend:
            names.add(ATTEND)
            continue
        # `from torch.nn.functional import scaled_dot_product_attention as sdpa`: built in, without code.
        if isinstance(function, BuiltinFunctionType):
            names.add(function.__name__)
        code = getattr(function, "__code__", None)
        if code is None or code in visited:
            continue
        visited.add(code)
        used = {name for part in _codes_in(code) for name in part.co_names}
        names |= used
        if any(_multiplies_matrices(part.co_code) for part in _codes_in(code)):
            names.add("matmul")
        if {"regard", "attend"} <= used:
            names.add(ATTEND)
        pending += _called_by(function, used)
    return frozenset(names)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the comprehensions and functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _called_by(function: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield the functions that a function may call by these names: of its file, or of one that it imports."""
    variables = getattr(function, "__globals__", {})
    values = [variables[name] for name in names if name in variables]
    for value in list(values):
        if isinstance(value, ModuleType) and not value.__name__.startswith(OTHERS):
            values += [vars(value)[name] for name in names if name in vars(value)]
    for value in values:
        is_own = isinstance(value, FunctionType) and value.__module__ == function.__module__
        is_known = isinstance(value, BuiltinFunctionType | torch.jit.ScriptFunction) or value is attend
        if is_own or is_known or (isinstance(value, FunctionType) and _is_followed(value)):
            yield value


def _is_followed(function: Any) -> bool:
    """Whether a function is not one of torch, Transformers or Regard."""
    return not str(function.__module__).startswith(OTHERS)


def _multiplies_matrices(bytecode: bytes) -> bool:
    """Whether the operator @ is in some bytecode. `dis` would take a hundred times longer."""
    return _MATMUL in bytecode and _MATMUL in {bytecode[i : i + 2] for i in range(0, len(bytecode), 2)}
