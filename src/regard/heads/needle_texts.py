"""The texts of the needle test: needles that no model can know, and sentences to hide them among.

A needle is a sentence in two parts. The first stands again at the end of the context; the second, which
nothing but the needle can tell, is the answer. The texts are in `needle_texts.toml`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class Needle(NamedTuple):
    """A sentence to hide in a text, in two parts, and how it is asked for at the end."""

    prompt: str
    """Its beginning."""
    answer: str
    """Its end, which is to be copied."""
    question: str = ""
    """What stands before the answer at the end of the context; by default the prompt again."""


_TEXTS = tomllib.loads(Path(__file__).with_name("needle_texts.toml").read_text(encoding="utf-8"))
NEEDLES = tuple(Needle(*parts) for parts in _TEXTS["needles"])
FILLER: tuple[str, ...] = tuple(_TEXTS["filler"])
