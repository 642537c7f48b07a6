"""Remembers what is found by a model's structure alone: which modules attend, which of them mix tokens.

It is found once, and again when a module of the model, its class or one of its attributes is another. What is
remembered are names and numbers: the memory keeps no module alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

T = TypeVar("T")

_memory: WeakKeyDictionary[nn.Module, tuple[int, dict[str, Any]]] = WeakKeyDictionary()
"""For each model the fingerprint of its structure, and what was found, by the name of the function."""
_unchanged: ContextVar[tuple[nn.Module, dict[str, nn.Module]] | None] = ContextVar(
    "unchanged_model", default=None
)


def remembered(find: Callable[[nn.Module], T]) -> Callable[[nn.Module], T]:
    """Decorate a function of a model's structure, which returns names and numbers and no module."""
    name = f"{find.__module__}.{find.__qualname__}"

    @functools.wraps(find)
    def found(model: nn.Module) -> T:
        known = _known(model)
        if name not in known:
            known[name] = find(model)
        return known[name]  # type: ignore[no-any-return]

    return found


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside the block, the structure of a model does not change, so that it is looked at once."""
    _known(model)
    token = _unchanged.set((model, modules_of(model)))
    try:
        yield
    finally:
        _unchanged.reset(token)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name, as `named_modules` yields them."""
    now = _unchanged.get()
    return now[1] if now is not None and now[0] is model else dict(model.named_modules())


def _known(model: nn.Module) -> dict[str, Any]:
    """Return what is known of a model as it is now."""
    now = _unchanged.get()
    if now is not None and now[0] is model and model in _memory:
        return _memory[model][1]
    number, before = fingerprint(model), _memory.get(model)
    if before is None or before[0] != number:
        _memory[model] = before = number, {}
    return before[1]


def fingerprint(model: nn.Module) -> int:
    """Return a number that is another if a module of the model, its class or an attribute is another."""
    parts: list[Any] = []
    pending, known = [model], set()
    while pending:
        module = pending.pop()
        if id(module) in known:
            continue
        known.add(id(module))
        children = module._modules  # of TorchScript: no dict, but with keys and values
        parts.append((type(module), id(module), *children.keys(), *map(id, vars(module).values())))
        pending += [child for child in children.values() if child is not None]
    return hash(tuple(parts))
