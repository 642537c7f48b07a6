"""The modules of a model: those whose code is running, and what is found by their structure alone.

What is found is remembered, and found again when a module of the model, its class or one of its attributes is
another. It is names and numbers: the memory keeps no module alive.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import CodeType, FrameType
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


def is_inside(name: str, outer: str) -> bool:
    """Whether a module is another one or inside it, by their names."""
    return name == outer or name.startswith(f"{outer}.")


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


NO_MODULE = nn.Module()
"""Stands for the module of code that runs in none."""


def calling_modules() -> Iterator[nn.Module]:
    """Yield the modules whose code is running, the innermost first."""
    # `inspect.stack` would read source files at every call.
    frame: FrameType | None = sys._getframe(1)
    last = None
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        # Transformers' attention functions take their module as a first argument called `module`.
        if names and names[0] in ("self", "module"):
            module = frame.f_locals.get(names[0])
            # A module has several frames: `_wrapped_call_impl`, `_call_impl`, `forward`.
            if isinstance(module, nn.Module) and module is not last:
                last = module
                yield module
        frame = frame.f_back


def calling_module() -> nn.Module:
    """Return the innermost module whose code is running, or `NO_MODULE`."""
    return next(calling_modules(), NO_MODULE)


def is_running(code: CodeType) -> bool:
    """Whether the function that has this code was called and has not returned yet."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
