"""The author's source text, and the numbers in it: where to look for a window, a cap or a rotary base.

What is found here is only a candidate. It counts once the oracle has reproduced the code's numbers with it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.subject.subject import Subject


def source_of(subject: Subject) -> str:
    """Return the source of a function or class with the helpers that it uses, or "" if there is none."""
    return "\n".join(_source(code) for code in _codes(subject))


def _codes(subject: Subject) -> list[Any]:
    """Return the code under test: a function or the classes of modules, and helpers of the same file."""
    target = subject.target
    if isinstance(target, nn.Module):
        kinds = list(dict.fromkeys(type(part) for part in target.modules()))
        found: list[Any] = [kind for kind in kinds if not kind.__module__.startswith("torch.")]
    else:
        while isinstance(target, functools.partial):
            target = target.func
        found = [target if inspect.isroutine(target) else type(target)]
    for code in found:  # grows while it is read
        found += [helper for helper in _helpers(code) if helper not in found and len(found) < 40]
    return found


def _helpers(code: Any) -> Iterator[Any]:
    """Yield the functions that a function or a class's methods name, if they stand in the same file."""
    methods = vars(code).values() if isinstance(code, type) else [code]
    for method in methods:
        method = inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None
        names = getattr(getattr(method, "__code__", None), "co_names", ())
        places = getattr(method, "__globals__", {})
        cells = getattr(method, "__closure__", None) or ()
        values = [places.get(name) for name in names] + [_content(cell) for cell in cells]
        for value in values:
            value = inspect.unwrap(value) if inspect.isfunction(value) else value
            if inspect.isfunction(value) and value.__module__ == getattr(method, "__module__", None):
                yield value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


@functools.cache
def _source(code: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return ""


def returned_names(source: str) -> set[str]:
    """Return the names of what functions return beside their first result: "attn" of `return out, attn`."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda inside an expression
        return set()
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    others = [part for value in returned if isinstance(value, ast.Tuple) for part in value.elts[1:]]
    return {node.id for part in others for node in ast.walk(part) if isinstance(node, ast.Name)}


def numbers_of(subject: Subject) -> list[float]:
    """Return the positive numbers that the code holds: attributes, arguments, defaults and literals."""
    found: set[float] = set()
    for value in _values(subject):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            value, number = float(value), True
        if number and 0 < float(value) < 1e9:
            found.add(float(value))
    return sorted(found)


def _values(subject: Subject) -> Iterator[Any]:
    yield from subject.init.values()
    yield from subject.extra.values()
    if subject.module is not None:
        for part in subject.module.modules():
            config = getattr(part, "config", None)
            yield from [*vars(part).values(), *getattr(config, "__dict__", {}).values()]
            yield from part._parameters.values()
            yield from part._buffers.values()
    for code in _codes(subject):
        for cell in getattr(code, "__closure__", None) or ():
            yield _content(cell)
        try:
            tree = ast.parse(_source(code))
        except SyntaxError:  # a lambda inside an expression
            continue
        yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))


def tensors_of(subject: Subject) -> list[tuple[str, Tensor]]:
    """Return every tensor that a module holds, with its path: parameters, buffers and plain attributes."""
    module = subject.module_as(torch.float64)
    if module is None:
        return []
    found = [*module.named_parameters(), *module.named_buffers()]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, Tensor):
                    found.append((f"{path}.{name}".lstrip("."), tensor))
    return [(path, tensor.detach()) for path, tensor in found]
