"""From `path/to/file.py:Name` or `package.module:Name` to the object of that name.

Importing runs the author's code: from a shell this happens in a process of its own (see `sandbox`). Every
failure is a `CheckError` of one line that says what to do.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.checker.errors import CheckError, error_line


def split(spec: str) -> tuple[str, str]:
    """Split `place:Name` into place and name; CheckError if the file or the name is missing."""
    place, colon, name = spec.rpartition(":")
    # The last colon may be that of a drive, as in C:\file.py.
    if not colon or name.endswith(".py") or "/" in name or "\\" in name:
        place, name = spec, ""
    path = Path(place)
    if path.suffix == ".py" or "/" in place or "\\" in place or path.is_dir():
        if path.is_dir():
            raise CheckError(f"{place} is a folder; expected a file: {place.rstrip('/')}/file.py:Name")
        if not path.exists():
            raise CheckError(f"no file {place}{_near(path)}; expected path/to/file.py:Name")
        if not path.is_file():
            raise CheckError(f"{place} is a pipe or a device; expected path/to/file.py:Name")
    if not name:
        raise CheckError(f"say what to check, as {place}:Name{_defined(path)}")
    return place, name


def locate(spec: str) -> Any:
    """Import the place of `place:Name` and return the object called Name."""
    place, name = split(spec)
    module = import_place(place, name)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise CheckError(f"{place} has no `{name}`{_offers(module, name)}")
        thing = getattr(thing, part)
    return thing


def import_place(place: str, name: str = "Name") -> ModuleType:
    """Import a file `path/to/file.py` or a module; CheckError, which may mention `name`, if that fails."""
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    except CheckError:
        raise
    except SystemExit as error:
        raise CheckError(
            f"{place} calls exit() while it is imported (code {error.code}): put code that is only for a "
            'script under if __name__ == "__main__":'
        ) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = _line(error, place)
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = f": install {error.name}, or run where it can be imported"
        elif isinstance(error, ImportError) and "relative import" in str(error):
            hint = _as_module(Path(place), name)
        raise CheckError(f"{place} does not import: {error_line(error)}{where}{hint}") from error


def _from_file(path: Path) -> ModuleType:
    """Import a file. A file inside a package is imported by its full name, so that relative imports work."""
    path = path.resolve()
    parts, home = [path.stem], path.parent
    while (home / "__init__.py").exists():
        parts.insert(0, home.name)
        home = home.parent
    sys.path.insert(0, str(home))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    name = f"checked_{path.stem}"  # a file called torch.py must not replace torch
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass with annotations as strings looks its module up here.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _as_module(path: Path, name: str) -> str:
    """Say how to name a file as a module of its package, for a file whose relative imports need one.

    A package without `__init__.py` files is as deep as the file's relative imports go: `from ..rope import x`
    needs two folders.
    """
    path = path.resolve()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if not 0 < max(levels, default=0) < len(path.parents):
        return ""  # a file that it imports has them
    home = path.parents[max(levels)]
    while (home / "__init__.py").exists():
        home = home.parent
    module = ".".join((*path.relative_to(home).parts[:-1], path.stem))
    here = Path.cwd()
    where = "" if home == here else f" in the folder {os.path.relpath(home, here)}"
    return f": it belongs to a package, so name it as a module{where}: regard check {module}:{name}"


def _from_package(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that the named one imports may be missing instead.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise CheckError(
                f"no module {name}; expected package.module:Name or path/to/file.py:Name"
            ) from None
        raise


def _line(error: BaseException, place: str) -> str:
    """Return " (line n)" for the last line of the author's file in the traceback."""
    if isinstance(error, SyntaxError):
        return ""  # its message names the line
    name = Path(place).name
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == name]
    return f" (line {lines[-1]})" if lines else ""


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (and no folder {path.parent})"
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
    return f" (there is {near[0]})" if near else ""


def _defined(path: Path) -> str:
    """List the classes and functions that a file defines, without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name[0] != "_"]
    return f": it defines {', '.join(names[:8])}" if names else ""


def _offers(module: ModuleType, name: str) -> str:
    """Suggest the callables that a module defines, the nearest name first."""
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
    ]
    near = difflib.get_close_matches(name, own, n=1)
    if near:
        return f": did you mean {near[0]}?"
    return f"; it has {', '.join(own[:8])}" if own else "; it defines nothing that can be called"
