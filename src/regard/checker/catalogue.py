"""The catalogue: every mistake by its name."""

from __future__ import annotations

import difflib

from regard.checker.mistakes.cache import CACHING
from regard.checker.mistakes.dropout import DROPPING
from regard.checker.mistakes.heads import HEADS
from regard.checker.mistakes.masks import MASKING
from regard.checker.mistakes.mistake import Mistake
from regard.checker.mistakes.module_state import KEEPING
from regard.checker.mistakes.numbers import NUMBERS
from regard.checker.mistakes.roles import ROLES
from regard.checker.mistakes.scale import SCALING
from regard.checker.mistakes.softmax import SOFTMAX

THEMES: dict[str, tuple[Mistake, ...]] = {
    "scale": SCALING,
    "softmax": SOFTMAX,
    "mask": MASKING,
    "cache": CACHING,
    "heads and batch": HEADS,
    "query, key and value": ROLES,
    "dropout": DROPPING,
    "modules": KEEPING,
    "numbers": NUMBERS,
}
CATALOGUE: dict[str, Mistake] = {m.name: m for theme in THEMES.values() for m in theme}


def mistake(name: str) -> Mistake:
    """The mistake of that name; ValueError says which names come near."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.4)
        hint = f": did you mean {', '.join(near)}?" if near else "; regard check --list shows all"
        raise ValueError(f"no mistake is called {name!r}{hint}")
    return CATALOGUE[name]
