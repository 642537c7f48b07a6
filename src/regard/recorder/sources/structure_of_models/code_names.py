"""Reads which names the code of a module uses: of its class, of functions that it holds, and of its graph.

Bytecode is followed into the functions that are called: those of the same file and of other files, closures,
tables of functions, `torch.autograd.Function`s. The graphs of `torch.fx`, `torch.export` and TorchScript
are read as such. Only running a module shows what it computes; this file knows names.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

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
GLOBAL, IMPORT = dis.opmap["LOAD_GLOBAL"], dis.opmap["IMPORT_NAME"]  # bit 0 of a global: it is called
ATTRIBUTES = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap}
ATTRIBUTE_BITS = 1 if sys.version_info >= (3, 12) else 0  # that precede the number of an attribute's name
EXTENDED, CACHE = dis.opmap["EXTENDED_ARG"], dis.opmap.get("CACHE", 0)
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial, torch.jit.ScriptFunction)
TABLES = (dict, list, tuple)
TABLE_SIZE = 256  # the most entries of a table that are looked at
SIMPLE = (type(None), bool, int, float, str, type, nn.Module, torch.Tensor)
"""Types of attributes that have no code of their own; modules are looked at one by one."""
EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
OTHERS = ("torch", "transformers.", "regard.")
"""How the names of the files begin whose functions are not followed from another file."""
ATTEND = "regard.attend"
"""Stands among the names for the function itself, by whichever name it is called; other functions have its
name as well."""
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
    # Since Python 3.14 a class holds a partial as a static method, or else it is bound to the object.
    values = [
        x.__func__ if isinstance(x, staticmethod) else x
        for base in kind.__mro__
        if not base.__module__.startswith(bases)
        for x in vars(base).values()
    ]
    tables = (x for x in values if isinstance(x, (*TABLES, functools.partial)))
    return _names_in([*values, *(function for table in tables for function in _functions_in(table))])


def module_names(module: nn.Module) -> frozenset[str]:
    """Return the names in the code of a module: of its class, of what computes for it, and of its graph.

    The modules of diffusers hold such an object, which they call their processor; others hold functions.
    """
    names = called_names(cast(Any, type(module)))
    for name, value in vars(module).items():
        if name in EVERY_MODULE or isinstance(value, SIMPLE):
            continue
        if isinstance(value, fx.Graph):
            names |= _graph_names(value)
        elif isinstance(value, (*FUNCTIONS, *TABLES)):
            names |= _held_names(value)
        elif callable(value) or not type(value).__module__.startswith((*OTHERS, "builtins", "collections")):
            names |= called_names(cast(Any, type(value)))  # an object that may compute for the module
    return names


def class_uses_name(kind: type, name: str) -> bool:
    """Whether the code of a class uses this name."""
    return name in called_names(kind)


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


_function_names: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def _held_names(value: Any) -> frozenset[str]:
    """Return the names in functions that a module holds, but for those of torch and Transformers."""
    names: frozenset[str] = frozenset()
    for function in _functions_in(value):
        if function not in _function_names:
            is_read = isinstance(function, BuiltinFunctionType | torch.jit.ScriptFunction)
            is_read = is_read or _is_followed(function)
            is_read = is_read or inspect.unwrap(function) is attend
            _function_names[function] = _names_in([function]) if is_read else frozenset()
        names |= _function_names[function]
    return names


def _graph_names(graph: fx.Graph) -> frozenset[str]:
    """Return the names of the functions and methods that a graph calls."""
    names: set[str] = set()
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            names.add(node.target if isinstance(node.target, str) else function_name(node.target))
            names |= _held_names(node.target)
    return frozenset(names)


def _names_in(functions: Iterable[Any]) -> frozenset[str]:
    """Return the names in the code of functions, and of the functions that they call."""
    names: set[str] = set()
    pending, visited = list(functions), dict[int, Any]()  # by their ids, as closures share their code
    while pending:
        function = pending.pop()
        if isinstance(function, torch.jit.ScriptFunction):
            names |= script_names(function)
            continue
        function = inspect.unwrap(function) if callable(function) else function
        if function is attend:
            names.add(ATTEND)
            continue
        # PyTorch's functions are built in: they have a name and no code.
        if isinstance(function, BuiltinFunctionType):
            names.add(function.__name__)
        code = getattr(function, "__code__", None)
        if code is None or id(function) in visited:
            continue
        # It is held, so that its id is not given to another.
        visited[id(function)] = function
        inner = list(_codes_in(code))
        for part in inner:
            names |= set(part.co_names)
            if _multiplies_matrices(part.co_code):
                names.add("matmul")
        used = {name for part in inner for name in part.co_names}
        pending += [
            called
            for called in _called_by(function, used)
            if _is_followed(called)
            or called.__module__ == function.__module__
            or isinstance(called, BuiltinFunctionType | torch.jit.ScriptFunction)
            or (inspect.unwrap(called) is attend and _is_followed(function))
        ]
    return frozenset(names)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the comprehensions and functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _called_by(function: Any, names: set[str]) -> Iterator[Any]:
    """Yield the functions that a function may call by these names, and those that it holds in its closure."""
    variables = getattr(function, "__globals__", {})
    known = [name for name in names if name in variables]
    loaded = _loaded_names(function.__code__) if known or "attend" in names else frozenset()
    values = [variables[name] for name in known if name in loaded]
    if "attend" in names and _loads_attend(loaded, variables):
        yield attend
    values += getattr(function, "__defaults__", None) or ()
    values += (getattr(function, "__kwdefaults__", None) or {}).values()
    values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_set(cell)]
    visited: set[str] = set()
    while values:
        value = values.pop()
        if not isinstance(value, ModuleType):
            yield from _functions_in(value)
        elif value.__name__ not in visited and not value.__name__.startswith(OTHERS):
            visited.add(value.__name__)
            values += [vars(value)[name] for name in names if name in vars(value)]


def _loaded_names(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that some code loads, "name.attribute" if it asks one for an attribute,
    and "import name" for each file that it imports."""
    loaded: set[str] = set()
    for part in _codes_in(code):
        high, before = 0, ""
        for operation, low in zip(part.co_code[::2], part.co_code[1::2], strict=True):
            number = high | low
            high = number << 8 if operation == EXTENDED else 0
            if operation == GLOBAL:
                loaded.add(before := part.co_names[number >> 1])
            elif operation == IMPORT:
                loaded.add(f"import {part.co_names[number]}")
            elif operation in ATTRIBUTES and before:
                loaded.add(f"{before}.{part.co_names[number >> ATTRIBUTE_BITS]}")
            before = before if operation in (GLOBAL, EXTENDED, CACHE) else ""
    return frozenset(loaded)


def _loads_attend(loaded: frozenset[str], variables: Mapping[str, Any]) -> bool:
    """Whether code that loads these names asks the package for its function, or imports it."""
    for name in loaded:
        if name.partition(".")[0] == "import regard":
            return True
        value = variables.get(name)
        if isinstance(value, ModuleType) and value.__name__ == "regard" and f"{name}.attend" in loaded:
            return True
    return False


def _is_set(cell: Any) -> bool:
    """Whether a cell of a closure has a value."""
    # A function that is not defined yet when another refers to it leaves an empty cell, which raises.
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _functions_in(value: Any) -> Iterator[Any]:
    """Yield the functions that a value is or holds: also in a table, and as a `torch.autograd.Function`."""
    if isinstance(value, TABLES):
        for entry in itertools.islice(value.values() if isinstance(value, dict) else value, TABLE_SIZE):
            if isinstance(entry, FUNCTIONS):
                yield from _functions_in(entry)
    elif isinstance(value, functools.partial):
        yield from _functions_in(value.func)
    elif isinstance(value, MethodType):
        yield from _functions_in(value.__func__)
    elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
        yield from (inspect.unwrap(x) for x in vars(value).values() if isinstance(x, staticmethod))
    elif isinstance(value, FunctionType | BuiltinFunctionType | torch.jit.ScriptFunction):
        yield value


def _is_followed(function: Any) -> bool:
    """Whether a function is not one of torch, Transformers or Regard."""
    return not str(function.__module__).startswith(OTHERS)


def _multiplies_matrices(bytecode: bytes) -> bool:
    """Whether the operator @ is in some bytecode. `dis` would take a hundred times longer."""
    return _MATMUL in bytecode and _MATMUL in {bytecode[i : i + 2] for i in range(0, len(bytecode), 2)}
