"""Replacing a function wherever it is bound: under other names, in other modules, in dicts and lists."""

from __future__ import annotations

import gc
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.checker.errors import CheckError
from regard.checker.subject.locate import import_place, split


def import_target(spec: str) -> tuple[Any, str, Any]:
    """Import `package.module:name` or `file.py:name`; return its owner, its name there, and the target.

    A file is imported by the name that a test beside it would use. The target of a module's class is its
    `forward`.
    """
    place, name = split(spec)
    if place.endswith(".py"):
        place = _module_name(Path(place).resolve())
    owner: Any = import_place(place, name)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    if not callable(target := getattr(owner, last, None)):
        raise CheckError(f"{place} has no function `{name}`; expected --target package.module:function")
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return target, "forward", target.forward
    return owner, last, target


def _module_name(path: Path) -> str:
    """Return the name by which a file is imported, with the folder that holds it on the path."""
    parts, home = [path.stem], path.parent
    while (home / "__init__.py").exists():
        parts.insert(0, home.name)
        home = home.parent
    sys.path.insert(0, str(home))
    importlib.invalidate_caches()
    return ".".join(parts)


def replace_everywhere(target: Any, new: Callable[..., Any]) -> None:
    """Put `new` in the place of `target` in every dict, list and closure that holds it.

    The names of modules are dicts, and so are registries of functions. Tuples and partial functions cannot
    be changed: a target that is held there alone is not called by its mutants, which their log shows.
    """
    number = id(target)  # a comprehension over `target` would hold it in a cell of its own
    own = {id(cell) for cell in getattr(new, "__closure__", None) or ()} | {id(new.__dict__)}
    for holder in gc.get_referrers(target):
        if id(holder) in own:
            continue
        if isinstance(holder, types.CellType):
            holder.cell_contents = new
        elif isinstance(holder, dict | list):
            places: Any = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
            for place in [place for place, value in places if id(value) == number]:
                holder[place] = new
