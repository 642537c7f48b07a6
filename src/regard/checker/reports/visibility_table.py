"""How far each mistake stands off the right answer, as a table that prints and exports."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from regard.checker.catalogue import THEMES
from regard.support.table import Column, Table

CLEAR = 10.0  # tolerances at which a mistake of the catalogue must stand off, on some input
WIDTH = 100  # columns of the table
# The kinds of input and their column heads, of at most two lines.
KINDS = {
    "plain": "plain",
    "causal": "cau-\nsal",
    "mask": "mask",
    "padding": "pad-\nding",
    "window": "win-\ndow",
    "softcap": "soft\ncap",
    "grouped heads": "GQA",
    "other shapes": "other\nshape",
    "causal, T < S": "T<S",
    "float mask": "bias",
    "two options": "two\nopt.",
    "sink logits": "sink",
    "lengths": "rag-\nged",
    "large scores": "big\nq·k",
}


@dataclass(frozen=True)
class MistakeDistance:
    """How far one mistake is from the right answer, in tolerances.

    `distances` has the largest distance on each kind of input, over the forms of the mistake; inf means NaN
    or an error. `reason` says why a mistake is not seen at all. `unseen_forms` has the forms that are not
    seen although the inputs have what they act on, each with its reason.
    """

    name: str
    distances: dict[str, float] = field(default_factory=dict)
    unseen_forms: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def largest(self) -> float:
        """The distance on the input that shows it best."""
        return max(self.distances.values(), default=0.0)

    @property
    def seen(self) -> bool:
        """Whether a test on these inputs would fail: whether it is off by more than the tolerance."""
        return self.largest > 1.0


@dataclass(frozen=True)
class VisibilityTable:
    """Which mistakes some inputs show: the result of `measure_visibility`.

    `str(visibility)` is a table for the inputs of a check, and a list for your own.
    """

    mistakes: tuple[MistakeDistance, ...]
    tolerance: float
    kinds: tuple[str, ...]  # the kinds of input that were asked
    not_asked: tuple[str, ...] = ()  # mistakes that need more than queries, keys and values

    @property
    def seen(self) -> list[str]:
        """The names of the mistakes that a test on these inputs would notice."""
        return [m.name for m in self.mistakes if m.seen]

    @property
    def unseen(self) -> dict[str, str]:
        """The names of the mistakes that it would not notice, each with the reason."""
        return {m.name: m.reason for m in self.mistakes if not m.seen}

    def __getitem__(self, name: str) -> MistakeDistance:
        """Return the distances of one mistake."""
        return next(m for m in self.mistakes if m.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return the distances as plain data that JSON can hold; None stands for NaN or an error."""
        return {
            "tolerance": self.tolerance,
            "kinds": list(self.kinds),
            "mistakes": [
                {
                    "name": m.name,
                    "seen": m.seen,
                    "distances": {
                        kind: d if math.isfinite(d) else None for kind, d in m.distances.items() if d > 0
                    },
                    "unseen_forms": m.unseen_forms,
                    "reason": m.reason,
                }
                for m in self.mistakes
            ],
            "not_asked": list(self.not_asked),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the distances as JSON, indented by `indent` spaces; None puts it on one line."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(_table(self) if len(self.kinds) > 1 else _list(self))


def format_distance(distance: float | None) -> str:
    """Return a distance in one digit: "4e4", "∞" for NaN or an error, "·" if it is not seen, "" for None."""
    if distance is None:
        return ""
    if not distance > 1.0:
        return "·"
    return "∞" if math.isinf(distance) else f"{distance:.0e}".replace("e+0", "e").replace("e+", "e")


def _table(visibility: VisibilityTable) -> list[str]:
    """Return the lines of a table: mistakes by kind of input, then the mistakes that other checks find."""
    kinds, names = visibility.kinds, max(len(m.name) for m in visibility.mistakes)
    title = (
        "How far each mistake is from the right answer, on the inputs of a check, in tolerances of "
        f"{visibility.tolerance:g}: · is not seen, ∞ is NaN or an error."
    )
    heads = [["", *KINDS[kind].split("\n")][-2:] for kind in kinds]
    rows = [["", *head] for head in zip(*heads, strict=True)]
    elsewhere: list[str] = []
    for theme, mistakes in THEMES.items():
        seen = []
        for m in (visibility[mistake.name] for mistake in mistakes):
            cells = [format_distance(m.distances.get(kind)) for kind in kinds]
            if set(cells) - {"·", ""}:
                seen.append([m.name, *cells])
            else:
                elsewhere += _paragraph(f"{m.name:<{names}} ", _describe_probe(m, kinds))
        rows += [[theme, *("" for _ in kinds)], *seen] if seen else []
    columns = [Column("", width=names), *(Column("", right=True) for _ in kinds)]
    lines = [*textwrap.wrap(title, WIDTH), "", *Table(columns, rows).lines(gap=" ", header=False)]
    if elsewhere:
        lines += ["measured in a program with the mistake, by the check that finds it", *elsewhere]
    return lines


def _paragraph(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def _describe_probe(m: MistakeDistance, kinds: tuple[str, ...]) -> str:
    """Return which check sees a mistake, and how far off it is there."""
    if m.reason:
        return m.reason
    probes = {name: distance for name, distance in m.distances.items() if name not in kinds}
    if not probes:
        return "not measured"
    name, distance = next(iter(probes.items()))
    return f"{name}: {'NaN or an error' if math.isinf(distance) else format_distance(distance)}"


def _list(visibility: VisibilityTable) -> list[str]:
    """Return the lines of a list: the mistakes that inputs of one kind do not show."""
    asked, seen = len(visibility.mistakes), len(visibility.seen)
    tolerance = f"with a tolerance of {visibility.tolerance:g}"
    lines = [f"A test on these inputs, {tolerance}, notices {seen} of {asked} mistakes."]
    partly = {
        f"{m.name} ({form})": reason
        for m in visibility.mistakes
        if m.seen
        for form, reason in m.unseen_forms.items()
    }
    unseen = visibility.unseen | partly
    names = max(map(len, unseen), default=0)
    lines += ["It does not notice"] if unseen else []
    for name, reason in unseen.items():
        lines += _paragraph(f"  {name:<{names}}  ", reason)
    return lines
