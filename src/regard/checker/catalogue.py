"""The catalogue: every mistake by its name, and the themes they belong to.

A mistake is a file of the folder `mistakes`, and `themes.toml` has their order.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from regard.checker.mistake import Mistake, read_mistake

_FOLDER = Path(__file__).parent
Value = TypeVar("Value")


class _ReadOnFirstUse(Mapping[str, Value]):
    """A mapping that is read when it is first used: importing the checker opens no file."""

    def __init__(self, read: Callable[[], dict[str, Value]]) -> None:
        self._read = functools.cache(read)

    def __getitem__(self, key: str) -> Value:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def read_themes(folder: Path) -> dict[str, tuple[Mistake, ...]]:
    """Return the mistakes of a folder by theme; ValueError names the file that is not as it should be."""
    names: dict[str, list[str]] = tomllib.loads((folder / "themes.toml").read_text(encoding="utf-8"))
    files = {path.stem: path for path in sorted((folder / "mistakes").glob("*.toml"))}
    listed = {name for theme in names.values() for name in theme}
    for name in files.keys() - listed:
        raise ValueError(f"{name}.toml: expected {name!r} under a theme of themes.toml, too")
    for name in listed - files.keys():
        raise ValueError(f"themes.toml: there is no file mistakes/{name}.toml")
    return {theme: tuple(read_mistake(files[name]) for name in names[theme]) for theme in names}


THEMES: Mapping[str, tuple[Mistake, ...]] = _ReadOnFirstUse(lambda: read_themes(_FOLDER))
CATALOGUE: Mapping[str, Mistake] = _ReadOnFirstUse(
    lambda: {mistake.name: mistake for theme in THEMES.values() for mistake in theme}
)


def get_mistake(name: str) -> Mistake:
    """Return the mistake of this name; ValueError suggests similar names."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.4)
        hint = f": did you mean {', '.join(near)}?" if near else "; regard check --list shows all"
        raise ValueError(f"name: there is no mistake called {name!r}{hint}")
    return CATALOGUE[name]
