"""Assigns layer ids to attention modules by their names: the stack, and the number in it.

Also reads which names the code of a module's class uses, from its bytecode. Transformers' models name their
modules in many ways; the few rules here cover those that were tested.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections import Counter
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from regard.recorder.layer import LayerId

# The operator @ as this Python writes it in bytecode: an operation and its argument, a byte each.
_MATMUL = next(
    bytes((s.opcode, s.arg or 0))
    for s in dis.get_instructions(compile("a @ b", "", "eval"))
    if s.argrepr == "@"
)


def assign_layer_ids(modules: Mapping[str, nn.Module]) -> dict[nn.Module, LayerId]:
    """Return the layer id of each attention module in `{name: module}`.

    The number is the one in the name (`model.layers.3.self_attn`). Where the names of a stack have no numbers
    that distinguish them, it is the module's position in the stack.
    """
    groups = {name: _group(name, module) for name, module in modules.items()}
    stacks = _stack_names(list(dict.fromkeys(groups.values())))
    numbers = {name: number_in(name, -1) for name in modules}
    counts = Counter((groups[name], number) for name, number in numbers.items())
    ambiguous = {group for (group, number), count in counts.items() if count > 1 or number < 0}
    position: Counter[str] = Counter()
    layer_ids = {}
    for name, module in modules.items():
        group = groups[name]
        number = position[group] if group in ambiguous else numbers[name]
        layer_ids[module] = LayerId(number, name, stacks[group])
        position[group] += 1
    return layer_ids


def number_in(name: str, default: int) -> int:
    """Return the first part of a module's name that is a number, or `default` if there is none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), default)


@functools.cache
def called_names(kind: Any) -> frozenset[str]:
    """Return the names in the code of a class's methods, and of the functions of its files that they call.

    What the base classes of torch and Transformers do for every model is left out. The operator @ counts as
    the name "matmul".
    """
    names: set[str] = set()
    pending: list[Any] = []
    for base in kind.__mro__:
        if not base.__module__.startswith(("torch.", "transformers.modeling_utils", "builtins")):
            pending += vars(base).values()
    visited: set[Any] = set()
    while pending:
        function = pending.pop()
        function = inspect.unwrap(function) if callable(function) else function
        code = getattr(function, "__code__", None)
        if code is None or code in visited:
            continue
        visited.add(code)
        for inner in (code, *code.co_consts):  # with the comprehensions and functions inside the function
            if isinstance(inner, CodeType):
                names |= set(inner.co_names)
                if _multiplies_matrices(inner.co_code):
                    names.add("matmul")
        variables = getattr(function, "__globals__", {})
        called = [variables[name] for name in code.co_names if isinstance(variables.get(name), FunctionType)]
        pending += [f for f in called if not f.__module__.startswith(("torch", "transformers.", "regard."))]
        pending += [f for f in called if f.__module__ == function.__module__]
    return frozenset(names)


def _multiplies_matrices(bytecode: bytes) -> bool:
    """Whether the operator @ is in some bytecode. `dis` would take a hundred times longer."""
    return _MATMUL in bytecode and _MATMUL in {bytecode[i : i + 2] for i in range(0, len(bytecode), 2)}


def class_uses_name(kind: type, name: str) -> bool:
    """Whether the code of a class uses this name."""
    return name in called_names(kind)


def module_uses_name(module: nn.Module, name: str) -> bool:
    """Whether the code of a module, or of an object that computes for it, uses this name.

    The modules of diffusers hold such an object, which they call their processor.
    """
    helpers = (x for x in vars(module).values() if callable(x) and not isinstance(x, nn.Module | type))
    return any(class_uses_name(kind, name) for kind in (type(module), *map(type, helpers)))


def _group(name: str, module: nn.Module) -> str:
    """Return what the modules of a stack share: the name up to the first number, and "cross" if it is."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    rest = ".".join(parts[first:]).lower()
    is_cross = any(mark in rest for mark in ("cross", "encoder_attn", "encdec"))
    if is_cross or getattr(module, "is_cross_attention", False) is True:
        return ".".join([*parts[:first], "cross"])
    return ".".join(parts[:first])


def _stack_names(groups: list[str]) -> dict[str, str]:
    """Name each stack: "" for the only one; "encoder", "decoder" or "cross"; otherwise by what differs."""
    if len(groups) == 1:
        return {groups[0]: ""}
    paths = {group: group.split(".") for group in groups}
    names = {
        group: next((x for x in ("cross", "decoder", "encoder") if x in path), "")
        for group, path in paths.items()
    }
    if len(set(names.values())) == len(groups) and all(names.values()):
        return names
    # The first part of the names in which all differ, as vision_tower and language_model; or the whole name.
    for parts in zip(*paths.values(), strict=False):
        if len(set(parts)) == len(groups):
            return dict(zip(groups, parts, strict=True))
    return {group: group for group in groups}
