"""An entry of the catalogue: what a mistake is, what it causes, how to fix it, and how to recognise it."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from regard.checker.changes import read_changes
from regard.checker.oracle.cache_variant import CacheVariant
from regard.checker.oracle.variant import AttentionVariant

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
    unseen_because: str = ""  # why it has no distance from right numbers, in a sentence, if so


_FIELDS = {f.name: f for f in fields(Mistake) if f.name != "name"}  # the name is that of the file
_REQUIRED = [name for name, f in _FIELDS.items() if f.default is MISSING and f.default_factory is MISSING]
_TABLES = {"changes", "cache_changes", "plants", "mended"}  # the fields that are lists of tables


def read_mistake(path: Path) -> Mistake:
    """Return the mistake that a file of `mistakes` holds; ValueError names the file and the fault."""
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_fields(entry)
        for name, value in entry.items():
            entry[name] = _read_field(name, value)
        return Mistake(path.stem, **entry)
    # The TOMLDecodeError of tomllib is a ValueError, too.
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _check_fields(entry: dict[str, Any]) -> None:
    for name, value in entry.items():
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(_FIELDS)}"
            raise ValueError(f"{name}: a mistake has no such field; {hint}")
        if name in _TABLES:
            expected, fits = "a list of tables", _is_list_of(dict, value)
        elif name == "layouts":
            expected, fits = "a list of texts", _is_list_of(str, value)
        elif name == "warning":
            expected, fits = "true or false", isinstance(value, bool)
        else:
            expected, fits = "text", isinstance(value, str)
        if not fits:
            raise ValueError(f"{name}: expected {expected}, got {value!r}")
    if missing := [name for name in _REQUIRED if name not in entry]:
        raise ValueError(f"expected {', '.join(missing)}, too")


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _read_field(name: str, value: Any) -> Any:
    if name == "changes":
        return read_changes(value, AttentionVariant)
    if name == "cache_changes":
        return read_changes(value, CacheVariant)
    if name == "layouts":
        return tuple(value)
    if name in ("plants", "mended"):
        return _read_swaps(name, value)
    return " ".join(value.split()) if isinstance(value, str) else value  # prose is wrapped in the file


def _read_swaps(name: str, entries: list[dict[str, Any]]) -> dict[str, tuple[Swap, ...]]:
    """Return the swaps by template, which may share them."""
    swaps: dict[str, tuple[Swap, ...]] = {}
    for entry in entries:
        texts = [entry.get("replace"), entry.get("with")]
        if len(entry) != 3 or not _is_list_of(str, entry.get("in")) or not _is_list_of(str, texts):
            raise ValueError(
                f"{name}: expected in (a list of programs), replace and with (texts), got {entry}"
            )
        for kind in entry["in"]:
            swaps[kind] = (*swaps.get(kind, ()), (entry["replace"], entry["with"]))
    return swaps
