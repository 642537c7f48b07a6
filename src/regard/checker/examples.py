"""Correct implementations, written the usual way, into which a mistake of the catalogue can be planted.

They are the files of `programs`. `regard explain-mistake` shows their text, and so the program that it runs.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.checker.mistake import Mistake, Swap

_PROGRAMS = Path(__file__).parent / "programs"
_MODULES = ("function", "head", "layer", "rotary", "alibi")
_KERNELS = ("flash", "packed", "paged", "kv cache", "split", "interface", "mask interface", "mask mod")
_ON_RANKS = ("ring", "ulysses")
# Kernels of several layouts import one core. A template holds its text, so that it can be shown and pasted.
_CORE = "from attend import attend\n"


def read_program(kind: str) -> str:
    """Return the source of a template, complete."""
    text = program_file(kind).read_text(encoding="utf-8")
    _, imports_core, wrapper = text.partition(_CORE)
    return program_file("attend").read_text(encoding="utf-8") + wrapper if imports_core else text


def program_file(kind: str) -> Path:
    """Return the file of a template."""
    return _PROGRAMS / f"{kind.replace(' ', '_')}.py"


def _last_definition(source: str) -> str:
    names: list[str] = re.findall(r"^(?:def|class) (\w+)", source, flags=re.MULTILINE)
    return names[-1]


KERNEL_TEMPLATES = {kind: read_program(kind) for kind in _KERNELS}
DISTRIBUTED_TEMPLATES = {kind: read_program(kind) for kind in _ON_RANKS}
TEMPLATES = {kind: read_program(kind) for kind in _MODULES} | KERNEL_TEMPLATES
ALL_TEMPLATES = TEMPLATES | DISTRIBUTED_TEMPLATES  # those that run on several processes, too
NAMES = {kind: _last_definition(source) for kind, source in ALL_TEMPLATES.items()}


def plant_mistake(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` with a mistake in it."""
    return _swapped(mistake, kind, mistake.plants[kind])


def mended_program(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` without the mistake: mostly the template itself."""
    return _swapped(mistake, kind, mistake.mended.get(kind, ()))


def _swapped(mistake: Mistake, kind: str, swaps: tuple[Swap, ...]) -> str:
    if kind not in ALL_TEMPLATES:
        raise ValueError(f"{mistake.name}: expected a template, {', '.join(ALL_TEMPLATES)}, got {kind!r}")
    text = ALL_TEMPLATES[kind]
    for old, new in swaps:
        if old not in text:
            raise ValueError(f"{mistake.name}: the {kind} template has no {old!r}")
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def loaded_program(source: str, name: str) -> Iterator[Any]:
    """Yield the function or class `name` of a program, whose source can be read as if it were a file."""
    file = f"<regard example {name}>"
    module = types.ModuleType(file)
    module.__file__ = file
    # inspect.getsource reads linecache. Without a time of modification checkcache leaves the entry alone.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # For a class, inspect looks its module up here to find the file.
    sys.modules[file] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
        yield getattr(module, name)
    finally:
        del sys.modules[file], linecache.cache[file]


def example_program(mistake: Mistake) -> str:
    """Return a program that contains the mistake and prints the report of `regard.check`."""
    kind = next(iter(mistake.plants))
    name, source = NAMES[kind], plant_mistake(mistake, kind)
    if kind not in DISTRIBUTED_TEMPLATES:
        return f"{source}\n\nfrom regard import check\n\nprint(check({name}))\n"
    call = f"    from regard import check\n\n    print(check({name}, processes=2))\n"
    return f'{source}\n\nif __name__ == "__main__":  # every process imports this file\n{call}'
