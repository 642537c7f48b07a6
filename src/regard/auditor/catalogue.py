"""The catalogue of what a model can read wrongly on a batch; its texts are in `mistakes.toml`."""

from __future__ import annotations

import functools
import textwrap
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


def reading_lines(mistake: ReadingMistake) -> list[str]:
    """Return a mistake explained, in lines: what it is, what you see, and every cause with its fix."""
    told = [{"cause": mistake.cause, "fix": mistake.fix}, *mistake.cases.values()]
    paragraphs = [f"{mistake.name}: the model {mistake.what}.", f"What you see: {mistake.symptom}"]
    paragraphs += [f"{word}: {text}" for case in told for word, text in case.items()]
    return [line for text in paragraphs for line in (*textwrap.wrap(text, 80, break_on_hyphens=False), "")]


@functools.cache
def reading_mistakes() -> dict[str, ReadingMistake]:
    """Return the mistakes by name; where several fit, the first is named first."""
    entries = tomllib.loads(files("regard.auditor").joinpath("mistakes.toml").read_text("utf-8"))
    return {name: ReadingMistake(name=name, **entry) for name, entry in entries.items()}
