"""Mistakes that lessons name and the checker's catalogue does not have, those of `mistakes.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.checker.catalogue import Mistake


@dataclass(frozen=True)
class ModelMistake:
    """A mistake outside of attention: its name, what it does, and how to fix it."""

    name: str
    effect: str
    fix: str


def sentence(text: str) -> str:
    """Return a text of several lines, as a table has it, on one."""
    return " ".join(text.split())


MODEL_MISTAKES = {
    name: ModelMistake(name, sentence(entry["effect"]), sentence(entry["fix"]))
    for name, entry in tomllib.loads(
        Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8")
    ).items()
}


def find_mistake(name: str) -> Mistake | ModelMistake | None:
    """Return the mistake of this name, from the checker's catalogue or from here; None if there is none."""
    # Here, since the catalogue imports PyTorch, and the command that prints an answer needs only names.
    from regard.checker.catalogue import CATALOGUE

    return CATALOGUE.get(name) or MODEL_MISTAKES.get(name)
