"""The catalogue: every mistake by its name, what it causes, how to fix it, and how to recognise it.

A mistake is a file of the folder `mistakes`, and `themes.toml` has their order. Its forms are the fields of a
variant of the oracle that each of them changes, `changes = [{ normalise = "twice" }]`. A list of values
stands for one form each, and several lists for every combination. Where a field is a function or None, the
file has a word of `WORDS` for it; other words are those of the field's `Literal`.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.checker.oracle.variant import Rule, Scale

RULES: dict[str, Rule] = {
    # A comparison with both broadcasts to the shape (T, S) of a mask; a constant True would not.
    "every": lambda q, k, n: (q >= 0) & (k >= 0),
    "earlier": lambda q, k, n: k < q + n.S - n.T,
    "later": lambda q, k, n: k > q + n.S - n.T,
    "from here": lambda q, k, n: k >= q + n.S - n.T,
    "one ahead": lambda q, k, n: k <= q + n.S - n.T + 1,
    # Of a cache.
    "top left": lambda q, k, n: k <= q,
    # `is_causal=T > 1`: one token at a time is right.
    "top left of several": lambda q, k, n: k <= q if n.T > 1 else k < n.S,
    "all rows": lambda q, k, n: (k < n.S) & (q >= 0) if n.S > n.T else k <= q,
    "one slot on": lambda q, k, n: (k <= q + n.S - n.T - 1) | ((k == n.S - 1) & (n.S > n.T)),
    "one more row": lambda q, k, n: k <= q + n.S,
}
SCALES: dict[str, Scale] = {
    "1": lambda n: 1.0,
    "1/D": lambda n: 1.0 / n.D,
    "√D": lambda n: float(n.D**0.5),
    "1/√C": lambda n: float(n.C**-0.5),
    "1/√S": lambda n: float(n.S**-0.5),
}
WORDS: dict[str, dict[str, Any]] = {
    "causal": RULES,
    "first_causal": RULES,
    "scale": SCALES,
    "window": {"none": None},
    "chunk": {"none": None},
}


def _read_changes(forms: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the fields of a variant that each form changes, every combination of their values once."""
    changes = []
    for form in forms:
        alternatives = [value if isinstance(value, list) else [value] for value in form.values()]
        for values in itertools.product(*alternatives):
            pairs = zip(form, values, strict=True)
            changes.append({name: _read_value(name, value) for name, value in pairs})
    return tuple(changes)


def _read_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return WORDS.get(name, {}).get(value, value)
    return tuple(value) if isinstance(value, list) else value


Swap = tuple[str, str]  # text of a correct implementation, and what replaces it


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalogue.

    A mistake without `changes` is found by a probe. A `warning` does not fail the check: PyTorch's attention
    does the same, or the code is right today and will break when the module is moved, saved or given longer
    inputs.
    """

    name: str
    what: str  # completes "your output equals attention …"
    effect: str  # what it does to a model, in a sentence
    fix: str
    origin: str  # where it comes from
    symptom: str = field(kw_only=True)  # what you see in training, in the map or in what the model writes
    why: str = field(kw_only=True)  # how the mistake leads there
    test: str = field(kw_only=True)  # the name of a test that finds it: see `checker.property_tests`
    changes: tuple[dict[str, Any], ...] = ()  # fields of `AttentionVariant`, for each form of the mistake
    cache_changes: tuple[dict[str, Any], ...] = ()  # fields of `CacheVariant`, for mistakes of a cache
    warning: bool = False
    layouts: tuple[str, ...] = ()  # the layouts of kernels in which it can be made; () for every code
    plants: dict[str, tuple[Swap, ...]] = field(default_factory=dict)  # by template: see `checker.examples`
    # The right program, by template, as swaps: where the mistake is in an option that the template has not.
    mended: dict[str, tuple[Swap, ...]] = field(default_factory=dict)
    # By the check of a probe that finds it: the `detail` of that check and the `evidence` of the diagnosis.
    found: dict[str, dict[str, str]] = field(default_factory=dict)
    unseen_because: str = ""  # why it has no distance from right numbers, in a sentence, if so


def read_mistake(path: Path) -> Mistake:
    """Return the mistake that a file of `mistakes` holds; ValueError names the file and the fault."""
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
        return Mistake(path.stem, **{name: _read_field(name, value) for name, value in entry.items()})
    # tomllib's own error is a ValueError, a field that is missing or unknown a TypeError.
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def _read_field(name: str, value: Any) -> Any:
    if name in ("changes", "cache_changes"):
        return _read_changes(value)
    if name == "layouts":
        return tuple(value)
    if name in ("plants", "mended"):
        swaps: dict[str, tuple[Swap, ...]] = {}  # by template; several may share one
        for entry in value:
            for kind in entry["in"]:
                swaps[kind] = (*swaps.get(kind, ()), (entry["replace"], entry["with"]))
        return swaps
    if isinstance(value, dict):
        return {key: _read_field("", text) for key, text in value.items()}
    return " ".join(value.split()) if isinstance(value, str) else value  # prose is wrapped in the file


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


THEMES = read_themes(Path(__file__).parent)
CATALOGUE = {mistake.name: mistake for theme in THEMES.values() for mistake in theme}


def get_mistake(name: str) -> Mistake:
    """Return the mistake of this name; ValueError suggests similar names."""
    if name not in CATALOGUE:
        raise unknown_mistake(name, CATALOGUE)
    return CATALOGUE[name]


def unknown_mistake(name: str, names: Iterable[str]) -> ValueError:
    """Return the error for a name that is none of these, which suggests the similar ones."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f": did you mean {', '.join(near)}?" if near else ";"
    return ValueError(f"name: there is no mistake called {name!r}{hint} regard check --list shows all")
