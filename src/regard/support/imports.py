"""Imports that may be missing, and imports that wait.

A missing optional library is answered with the command that installs it:

with extra("app", "regard.plot"):
    import matplotlib.pyplot as plt

Names are imported when they are used, and our part of a library when that is imported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class MissingExtraError(ImportError):
    """A library of one of the extras is not installed."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import libraries of an extra inside the block.

    MissingExtraError says that `purpose` needs the one which is missing, and how to install the extra `name`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        # A missing module of our own is a bug of ours, and no extra would install it.
        if library in ("", "regard"):
            raise
        raise MissingExtraError(
            f'{purpose} needs {library}, which is not installed: pip install "regard[{name}]"', name=library
        ) from None


def import_on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562), which imports a name from its home module when it is used."""

    def get_name(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        # Stored, so that `__getattr__`, which is slow, is asked once for each name.
        setattr(sys.modules[package], name, value)
        return value

    return get_name


def call_after_import(watched: str, module: str, function: str) -> None:
    """Call `module.function()` after the module `watched` is imported: now, if it is imported already.

    `module` is imported at that moment. An ImportError in it is ignored, so that an old version of the
    watched library can still be imported.
    """
    if watched in sys.modules:
        _call(module, function)
    else:
        # At the front, since a finder that finds the module ends the search.
        sys.meta_path.insert(0, _Finder(watched, module, function))


class _Finder(MetaPathFinder):
    """Finds the watched module as Python would, and adds the call to the end of its execution."""

    def __init__(self, watched: str, module: str, function: str) -> None:
        self.watched, self.module, self.function = watched, module, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.watched:
            return None
        sys.meta_path.remove(self)  # it is needed once; and the search below must not come here again
        spec = find_spec(fullname)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_then_call(module: ModuleType) -> None:
                execute(module)
                _call(self.module, self.function)

            # An instance's attribute: the import system calls loader.exec_module and never looks at the class
            # itself.
            loader.exec_module = execute_then_call  # type: ignore[method-assign]
        return spec


def _call(module: str, function: str) -> None:
    with contextlib.suppress(ImportError):
        getattr(import_module(module), function)()
