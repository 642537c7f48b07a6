"""One check in progress: what is known of the subject, and what has been found so far."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from regard.checker.cases import Cases
from regard.checker.catalogue import mistake
from regard.checker.diagnose import Match
from regard.checker.report import Check, Diagnosis
from regard.checker.subject.subject import Subject
from regard.checker.understand import Intent, Understanding


@dataclass
class CheckSession:
    """The subject as it was understood, and the findings."""

    understood: Understanding
    options: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    mixed: str = ""  # how the items of a batch depend on each other, if they do
    example: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def subject(self) -> Subject:
        return self.understood.subject

    @property
    def cases(self) -> Cases:
        return self.understood.cases

    @property
    def right(self) -> Intent | None:
        """The reading under which the output is right; None while it is not."""
        return (
            None
            if any(c.status == "failed" and c.name in OUTPUTS for c in self.checks)
            else self.understood.right
        )

    @property
    def module(self) -> nn.Module | None:
        return self.subject.module

    @property
    def source(self) -> str:
        """The author's text, where it can be had: it decides only between mistakes with the same numbers."""
        target = self.subject.target
        code = type(target) if isinstance(target, nn.Module) else getattr(target, "func", target)
        try:
            return inspect.getsource(code)
        except (OSError, TypeError):
            return str(self.options.get("source", ""))

    def passed(self, name: str, detail: str = "") -> None:
        self.checks.append(Check(name, "passed", detail))

    def left_out(self, name: str, why: str) -> None:
        self.checks.append(Check(name, "left out", why))

    def failed(self, name: str, detail: str) -> None:
        self.checks.append(Check(name, "failed", detail))

    def found(
        self,
        check: str,
        detail: str,
        name: str,
        evidence: str,
        error: float | None = None,
        *,
        caution: bool = False,
    ) -> None:
        """A check that came out badly, and the mistake that explains it."""
        caution = caution or mistake(name).caution
        self.checks.append(Check(check, "caution" if caution else "failed", detail))
        self.diagnosed(name, evidence, error, caution=caution)

    def diagnosed(
        self, name: str, evidence: str, error: float | None = None, *, caution: bool = False
    ) -> None:
        entry = mistake(name)
        caution = caution or entry.caution
        known = next((d for d in self.diagnoses if d.name == name), None)
        if known is None or (known.caution and not caution):  # what is wrong outweighs what calls for caution
            self.diagnoses = [d for d in self.diagnoses if d is not known]
            self.diagnoses.append(Diagnosis(name, evidence, entry.effect, entry.fix, error, caution))

    def matched(self, match: Match) -> None:
        """A diagnosis from recipes that gave the code's own numbers."""
        for name in match.names:
            entry = mistake(name)
            beside = [other for other in match.names if other != name]
            together = f", together with {beside[0]}" if beside else ""
            evidence = (
                f"Your output equals attention {entry.what}{together}, to {max(match.error, 1e-16):.0e}"
            )
            self.diagnosed(name, f"{evidence}{': ' + match.detail if match.detail else ''}.", match.error)


OUTPUTS = (
    "output",
    "causal",
    "mask",
    "padding",
    "window",
    "softcap",
    "grouped heads",
    "cross-attention",
    "value width",
    "float mask",
)
