"""Where the attentions of a model stand: which stack, and which number in it, told from the modules' names.

Transformers' models name theirs in many ways; the rules here are few and serve those that were looked at.
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

from regard.recorder.recording import LayerId


def assign_layer_ids(found: Mapping[str, nn.Module]) -> dict[nn.Module, LayerId]:
    """Attention modules by name, each with its place.

    The number is the one in the name (`model.layers.3.self_attn`), or where names have none that tells them
    apart, the order in which they stand.
    """
    groups = {name: _group(name, module) for name, module in found.items()}
    stacks = _stack_names(list(dict.fromkeys(groups.values())))
    numbers = {name: next((int(part) for part in name.split(".") if part.isdigit()), -1) for name in found}
    same = Counter((groups[name], number) for name, number in numbers.items())
    unclear = {group for (group, number), count in same.items() if count > 1 or number < 0}
    order: Counter[str] = Counter()
    places = {}
    for name, module in found.items():
        group = groups[name]
        number = order[group] if group in unclear else numbers[name]
        places[module] = LayerId(number, name, stacks[group])
        order[group] += 1
    return places


@functools.cache
def called_names(kind: Any) -> frozenset[str]:
    """The names in the code of a class's methods, and of the functions of its own files that those call."""
    names: set[str] = set()
    waiting: list[Any] = []
    for base in kind.__mro__:
        if not base.__module__.startswith(("torch.", "transformers.modeling_utils", "builtins")):
            waiting += vars(base).values()  # and not what every model has
    seen: set[Any] = set()
    while waiting:
        function = waiting.pop()
        function = inspect.unwrap(function) if callable(function) else function
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        for inner in (code, *code.co_consts):  # comprehensions and functions inside the function, too
            if isinstance(inner, CodeType):
                names |= set(inner.co_names)
                if any(step.argrepr == "@" for step in dis.get_instructions(inner)):
                    names.add("matmul")
        known = getattr(function, "__globals__", {})
        called = [known[name] for name in code.co_names if isinstance(known.get(name), FunctionType)]
        waiting += [f for f in called if not f.__module__.startswith(("torch", "transformers.", "regard."))]
        waiting += [f for f in called if f.__module__ == function.__module__]
    return frozenset(names)


def class_uses_name(kind: type, name: str) -> bool:
    """Whether the code of a module's class uses something of this name."""
    return name in called_names(kind)


def _group(name: str, module: nn.Module) -> str:
    """What the attentions of a stack share: the name up to the first number, and whether they cross."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    own = ".".join(parts[first:]).lower()
    crosses = any(mark in own for mark in ("cross", "encoder_attn", "encdec"))
    if crosses or getattr(module, "is_cross_attention", False) is True:
        return ".".join([*parts[:first], "cross"])
    return ".".join(parts[:first])


def _stack_names(groups: list[str]) -> dict[str, str]:
    """A name for each stack: "" if it is the only one; "encoder", "decoder", "cross"; else what differs."""
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
