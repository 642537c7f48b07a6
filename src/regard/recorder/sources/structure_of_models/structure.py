"""Remembers what is found by a model's structure alone: which modules attend, which of them mix tokens.

It is found once, and again when a module of the model, its class or one of its attributes is another. What is
remembered are names and numbers: the memory keeps no module alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

T = TypeVar("T")


OWN_ATTRIBUTES = len(vars(nn.Module()))
"""How many attributes every module has."""


class Structure(NamedTuple):
    """What is known of a model as long as its fingerprint is this one."""

    fingerprint: int
    names: dict[str, int]
    """For each module's name, in the order of `named_modules`, its place in the order of `fingerprint`."""
    found: dict[str, Any]
    """What was found, by the name of the function."""


_memory: WeakKeyDictionary[nn.Module, Structure] = WeakKeyDictionary()
_unchanged: ContextVar[tuple[nn.Module, dict[str, nn.Module] | None] | None] = ContextVar(
    "unchanged_model", default=None
)


def remembered(find: Callable[[nn.Module], T]) -> Callable[[nn.Module], T]:
    """Decorate a function of a model's structure, which returns names and numbers and no module."""
    name = f"{find.__module__}.{find.__qualname__}"

    @functools.wraps(find)
    def found(model: nn.Module) -> T:
        known = _memory[model] if _is_unchanged(model) else _look_at(model)[0]
        if name not in known.found:
            known.found[name] = find(model)
        return known.found[name]  # type: ignore[no-any-return]

    return found


@contextmanager
def unchanged(model: nn.Module, *, recall: bool = False) -> Iterator[None]:
    """Inside the block, the structure of a model does not change, so that it is looked at once.

    With `recall` what is remembered of it is taken to hold still, and it is not looked at.
    """
    named = None
    if not (recall and model in _memory):
        known, modules = _look_at(model)
        named = {name: modules[i] for name, i in known.names.items()}
    token = _unchanged.set((model, named))
    try:
        yield
    finally:
        _unchanged.reset(token)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name, as `named_modules` yields them."""
    now = _unchanged.get()
    known = now[1] if now is not None and now[0] is model else None
    return dict(model.named_modules()) if known is None else known


def _is_unchanged(model: nn.Module) -> bool:
    now = _unchanged.get()
    return now is not None and now[0] is model and model in _memory


def _look_at(model: nn.Module) -> tuple[Structure, list[nn.Module]]:
    """Return what is known of a model as it is now, and its modules in the order of `Structure.names`."""
    number, modules = fingerprint(model)
    known = _memory.get(model)
    if known is None or known.fingerprint != number:
        places = {module: i for i, module in enumerate(modules)}
        names = {name: places[module] for name, module in model.named_modules()}
        known = _memory[model] = Structure(number, names, {})
    return known, modules


def fingerprint(model: nn.Module) -> tuple[int, list[nn.Module]]:
    """Return a number that is another if a module, its class or an attribute is another; and the modules."""
    modules, known = [model], {model}
    parts: list[Any] = []
    for module in modules:  # which grows
        children = module._modules  # of TorchScript: no dict, but with keys and values
        parts += (type(module), id(module), *children.keys())
        # This line takes most of the time, so that PyTorch's own attributes, its dictionaries of parameters
        # and of hooks, are left out: they come first, unless a class sets some before `super().__init__()`.
        attributes = vars(module)
        own = OWN_ATTRIBUTES if next(iter(attributes), "") == "training" else 0
        parts.extend(map(id, islice(attributes.values(), own, None)))
        for child in children.values():
            if child is not None and child not in known:
                known.add(child)
                modules.append(child)
    return hash(tuple(parts)), modules
