"""The forms of a mistake: the fields of a variant of the oracle that each of them changes.

They stand in the mistake's file, `changes = [{ normalise = "twice" }]`. A list of values stands for one form
each, and several lists for every combination. Where a field is a function or None, the file has a word of
`WORDS` for it.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

from torch import Tensor

from regard.checker.oracle.cache_variant import CacheVariant
from regard.checker.oracle.variant import AttentionVariant, CaseSizes, Rule, Scale


def every(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    # A comparison with both broadcasts to the shape (T, S) of a mask; a constant True would not.
    return (q >= 0) & (k >= 0)


def earlier(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k < q + n.S - n.T


def later(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k > q + n.S - n.T


def from_here(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k >= q + n.S - n.T


def one_ahead(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q + n.S - n.T + 1


def top_left(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q


def top_left_of_several(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q if n.T > 1 else k < n.S  # `is_causal=T > 1`: one token at a time is right


def all_rows(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (k < n.S) & (q >= 0) if n.S > n.T else k <= q


def one_slot_on(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (k <= q + n.S - n.T - 1) | ((k == n.S - 1) & (n.S > n.T))


def one_more_row(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q + n.S


_PREDICATES = (every, earlier, later, from_here, one_ahead)
_CACHE_PREDICATES = (top_left, top_left_of_several, all_rows, one_slot_on, one_more_row)
RULES: dict[str, Rule] = {
    rule.__name__.replace("_", " "): rule for rule in (*_PREDICATES, *_CACHE_PREDICATES)
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


def read_changes(
    forms: list[dict[str, Any]], variant: type[AttentionVariant | CacheVariant]
) -> tuple[dict[str, Any], ...]:
    """Return the fields of `variant` that each form changes; ValueError says which one it does not have."""
    known = {f.name for f in fields(variant)}
    changes = []
    for form in forms:
        if unknown := sorted(form.keys() - known):
            raise ValueError(f"changes: {variant.__name__} has no field {', '.join(unknown)}")
        alternatives = [value if isinstance(value, list) else [value] for value in form.values()]
        for values in itertools.product(*alternatives):
            pairs = zip(form, values, strict=True)
            changes.append({name: _read_value(name, value) for name, value in pairs})
    return tuple(changes)


def _read_value(name: str, value: Any) -> Any:
    if isinstance(value, str) and (words := WORDS.get(name)) is not None:
        if value not in words:
            raise ValueError(f"changes: {name}: expected {', '.join(words)}, got {value!r}")
        return words[value]
    return tuple(value) if isinstance(value, list) else value
