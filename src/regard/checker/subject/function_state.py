"""What a function keeps from one call to the next: globals, a closure, defaults, attributes, a memo.

A module is copied for a fresh start; a function cannot be. So what it could change is remembered before its
first call and put back.
"""

from __future__ import annotations

import inspect
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

_CONTAINERS = (dict, list, set, deque)
_ABSENT = object()
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # whose state is not the author's


class FunctionState:
    """The state of a function as it is now, which `restore` brings back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._restorers: list[Callable[[], object]] = []
        self._seen: set[int] = set()
        called: Any = inspect.unwrap(getattr(function, "func", function))  # of a functools.partial
        if not isinstance(called, types.FunctionType):  # an object that is called
            self._remember_contents(getattr(called, "__dict__", {}))
            # The method itself, whose code can be read; callable() would only tell that there is one.
            called = getattr(type(called), "__call__", None)  # noqa: B004
        if isinstance(called, types.FunctionType):
            self._remember_function(called)

    def restore(self) -> None:
        """Bring back the state."""
        for restore in self._restorers:
            restore()

    def _remember_function(self, function: types.FunctionType) -> None:
        if id(function) in self._seen or _PACKAGES.search(function.__code__.co_filename):
            return
        self._seen.add(id(function))
        self._remember_contents(function.__dict__)
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            self._remember_contents(value)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # it is empty
                continue
            self._restorers.append(partial(setattr, cell, "cell_contents", value))
            self._remember_value(value, function)
        for name in set(_names(function.__code__)):
            value = function.__globals__.get(name, _ABSENT)
            self._restorers.append(partial(_bind, function.__globals__, name, value))
            self._remember_value(value, function)

    def _remember_value(self, value: Any, function: types.FunctionType) -> None:
        """Remember what a function can change in a value that it uses."""
        # functools.cache keeps the function that it wraps here.
        inner = getattr(value, "__wrapped__", value)
        if getattr(inner, "__module__", None) == function.__module__ and not isinstance(value, type):
            # A memo of functools.cache can be emptied, but not put back.
            if hasattr(value, "cache_clear"):
                self._restorers.append(value.cache_clear)
            if isinstance(inner, types.FunctionType):
                self._remember_function(inner)
            else:
                self._remember_contents(getattr(value, "__dict__", None))
        self._remember_contents(value)

    def _remember_contents(self, value: Any) -> None:
        """Remember what is in a container or a tensor."""
        # Sparse tensors and those of the meta device can be neither compared nor overwritten in this way.
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta:
            numbers = value.detach().clone()
            self._restorers.append(partial(_rewrite, value, numbers))
        elif isinstance(value, _CONTAINERS):
            contents = value.copy()
            self._restorers.append(partial(_refill, value, contents))
            for part in value.values() if isinstance(value, dict) else value:
                if isinstance(part, Tensor):
                    self._remember_contents(part)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _bind(names: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        names.pop(name, None)
    else:
        names[name] = value


def _rewrite(tensor: Tensor, numbers: Tensor) -> None:
    if not torch.equal(tensor, numbers):
        tensor.detach().copy_(numbers)


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(contents)
    else:
        container.extend(contents)
