"""The catalogue of what a model can read wrongly on a batch; its texts are in `mistakes.toml`."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True)
class ReadingMistake:
    """One way in which a model does not read what it should."""

    name: str
    what: str
    """Completes "the model …"."""
    symptom: str
    """What is seen in training or in what the model writes."""
    cause: str
    fix: str
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    """Other causes and fixes, by a name for what was seen."""


@functools.cache
def reading_mistakes() -> dict[str, ReadingMistake]:
    """Return the mistakes by name; where several fit, the first is named first."""
    entries = tomllib.loads(files("regard.auditor").joinpath("mistakes.toml").read_text("utf-8"))
    return {name: ReadingMistake(name=name, **entry) for name, entry in entries.items()}
