"""The catalogue: every mistake by its name, and the themes they belong to."""

from __future__ import annotations

import difflib

from regard.checker.mistakes.cache import CACHE_MISTAKES
from regard.checker.mistakes.calls import CALL_MISTAKES
from regard.checker.mistakes.distributed import DISTRIBUTED_MISTAKES
from regard.checker.mistakes.dropout import DROPOUT_MISTAKES
from regard.checker.mistakes.heads import HEAD_MISTAKES
from regard.checker.mistakes.kernels import KERNEL_MISTAKES
from regard.checker.mistakes.mask_options import MASK_OPTION_MISTAKES
from regard.checker.mistakes.masks import MASK_MISTAKES
from regard.checker.mistakes.mistake import Mistake
from regard.checker.mistakes.module_state import MODULE_MISTAKES
from regard.checker.mistakes.numbers import NUMBER_MISTAKES
from regard.checker.mistakes.positions import POSITION_MISTAKES
from regard.checker.mistakes.roles import ROLE_MISTAKES
from regard.checker.mistakes.scale import SCALE_MISTAKES
from regard.checker.mistakes.softmax import SOFTMAX_MISTAKES

THEMES: dict[str, tuple[Mistake, ...]] = {
    "scale": SCALE_MISTAKES,
    "softmax": SOFTMAX_MISTAKES,
    "mask": (*MASK_MISTAKES, *MASK_OPTION_MISTAKES),
    "cache": CACHE_MISTAKES,
    "heads and batch": HEAD_MISTAKES,
    "query, key and value": ROLE_MISTAKES,
    "positions": POSITION_MISTAKES,
    "dropout": DROPOUT_MISTAKES,
    "modules": MODULE_MISTAKES,
    "calls": CALL_MISTAKES,
    "numbers": NUMBER_MISTAKES,
    "kernels": KERNEL_MISTAKES,
    "several processes": DISTRIBUTED_MISTAKES,
}
CATALOGUE: dict[str, Mistake] = {m.name: m for theme in THEMES.values() for m in theme}


def get_mistake(name: str) -> Mistake:
    """Return the mistake of this name; ValueError suggests similar names."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=3, cutoff=0.4)
        hint = f": did you mean {', '.join(near)}?" if near else "; regard check --list shows all"
        raise ValueError(f"name: there is no mistake called {name!r}{hint}")
    return CATALOGUE[name]
