"""`Audit`: the verdict on what a model read on a batch, with its evidence."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from regard.auditor.changed_runs import OutsideReading
from regard.auditor.inside import LayerReading, layer_keys
from regard.auditor.picture import Section, page
from regard.support.cell_output import WrittenReport, wrap
from regard.support.characters import escape
from regard.support.files import atomic_write

WIDTH = 80
QUESTIONS: dict[str, str] = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))


@dataclass(frozen=True)
class ReadingDiagnosis:
    """A mistake that explains what was seen."""

    name: str
    what: str
    """The evidence, in sentences."""
    symptom: str
    cause: str
    fix: str


@dataclass(frozen=True)
class ReadingAnswer:
    """One question, and what was found from inside and from outside: True, False, or None if not asked."""

    question: str
    inside: bool | None
    outside: bool | None
    evidence: str = ""

    @property
    def right(self) -> bool | None:
        """Whether it is right: False if either says so, None if neither knows."""
        known = [x for x in (self.inside, self.outside) if x is not None]
        return None if not known else all(known)

    @property
    def differs(self) -> bool:
        """Whether inside and outside contradict each other."""
        return None not in (self.inside, self.outside) and self.inside != self.outside


@dataclass
class Audit(WrittenReport):
    """The result of `regard.audit`. `str(audit)` is the whole report."""

    subject: str
    assumptions: list[str] = field(default_factory=list)
    answers: list[ReadingAnswer] = field(default_factory=list)
    diagnoses: list[ReadingDiagnosis] = field(default_factory=list)
    layers: list[LayerReading] = field(default_factory=list)
    outside: OutsideReading = field(default_factory=OutsideReading)
    undecided: str = ""
    """Why there is no verdict, if so."""
    not_heard: tuple[str, ...] = ()
    """What could not be heard from inside, in sentences."""
    notes: list[str] = field(default_factory=list)
    is_split: bool = False
    """Whether several ranks each hold a part of every text (context parallelism)."""

    @property
    def verdict(self) -> str:
        """ "right", "wrong" or "undecided"."""
        return "wrong" if self.diagnoses else "undecided" if self.undecided else "right"

    @property
    def ok(self) -> bool:
        """Whether the verdict is "right": every question that the batch asks was answered, and rightly."""
        return self.verdict == "right"

    @property
    def masks(self) -> dict[int | str, str]:
        """The mask of each layer as it was heard, by the layer's key."""
        return {layer.key: layer.mask for layer in self.layers}

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.verdict == "right":
            asked = [a for a in self.answers if a.right]
            apart = sum(not layer.is_compared for layer in self.layers)
            less = (
                f", {apart} of {len(self.layers)} layers not compared"
                if apart
                else ", from outside only"
                if not self.layers
                else ""
            )
            return f"{self.subject} reads what it should: {len(asked)} questions answered{less}"
        if self.verdict == "undecided":
            return f"{self.subject} is UNDECIDED: {self.undecided}"
        return f"{self.subject} is WRONG: {', '.join(diagnosis.name for diagnosis in self.diagnoses)}"

    def __repr__(self) -> str:
        return f"<Audit: {self.summary}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = _wrapped(self.summary)
        for assumption in self.assumptions:
            lines += _wrapped(f"assumed: {assumption}", "  ")
        for diagnosis in self.diagnoses:
            lines += ["", f"  {diagnosis.name}"]
            lines += _wrapped(f"{diagnosis.what} {diagnosis.symptom}", "    ")
            lines += _wrapped(f"cause: {diagnosis.cause}", "    ")
            lines += _wrapped(f"fix: {diagnosis.fix}", "    ")
        lines.append("")
        for answer in self.answers:
            mark = {True: "✓", False: "✗", None: "?"}[answer.right]
            sides = [
                f"{side} {'✓' if x else '✗'}"
                for side, x in (("inside", answer.inside), ("outside", answer.outside))
                if x is not None
            ]
            # What was seen from inside stands in the diagnosis, if there is one.
            told = self.outside.evidence.get(answer.question, "") if answer.outside is False else ""
            told = told or ("" if self.diagnoses else answer.evidence)
            seen = f": {told}" if told and not answer.right else ""
            asked = ", ".join(sides) or "not known"
            lines += _wrapped(f"{mark} {QUESTIONS[answer.question]} ({asked}){seen}", "  ")
        groups = self.groups()
        lines += ["", "  layers, by what they see"] if groups else []
        for layers in groups:
            mask, expected, keys = layers[0].mask, layers[0].expected, layer_keys(layers)
            should = f"; expected {expected}" if any(x.wrong for x in layers) else ""
            should = (
                should
                if expected
                else f"; not compared: {layers[0].why or 'what it should see is not known'}"
            )
            doubt = "" if all(x.certified for x in layers) else "; not certified"
            lines += _wrapped(f"{keys}: {mask}{should}{doubt}", "    ")
        for sentence in (*self.not_heard, *self.notes):
            lines += _wrapped(f"– {sentence}", "  ")
        # Names and errors of a model may hold control characters of a terminal.
        return [escape(line) for line in lines]

    def groups(self) -> list[list[LayerReading]]:
        """Return the layers by what they see and should see, in the order of the model."""
        found: dict[tuple[str, str], list[LayerReading]] = {}
        for layer in self.layers:
            if layer.heard_mask is not None:
                found.setdefault((layer.mask, layer.expected), []).append(layer)
        return list(found.values())

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as a page with a picture of every kind of layer, what is wrong in colour.

        Arguments:
            path: the file to write; a file of that name is replaced.
        """
        write_audits({"": self}, path)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "ok": self.ok,
            "summary": self.summary,
            "assumptions": self.assumptions,
            "answers": [vars(a) | {"right": a.right} for a in self.answers],
            "diagnoses": [vars(d) for d in self.diagnoses],
            "layers": [
                {
                    "key": layer.key,
                    "name": layer.name,
                    "kind": layer.kind,
                    "mask": layer.mask,
                    "expected": layer.expected,
                    "certified": layer.certified,
                    "wrong": {q: {"cells": c.number, "first": c.first} for q, c in layer.wrong.items()},
                    "shares": {q: [round(x, 6) for x in s.tolist()] for q, s in layer.shares.items()},
                }
                for layer in self.layers
            ],
            "outside": {"runs": self.outside.runs, "evidence": self.outside.evidence},
            "undecided": self.undecided,
            "not_heard": self.not_heard,
            "notes": self.notes,
        }


def write_audits(audits: dict[str, Audit], path: str | PathLike[str]) -> None:
    """Write the reports of one model's audits as one page.

    Arguments:
        audits: the audits, each by the title of its batch; "" for none.
        path: the file to write; a file of that name is replaced.
    """
    sections = [Section(title, audit.summary, str(audit), audit.groups()) for title, audit in audits.items()]
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(page(next(iter(audits.values())).subject, sections), "utf-8")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return wrap(text, indent, "  ", WIDTH)
