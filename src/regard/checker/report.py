"""What a check found: a verdict, what passed, what failed, and the diagnosis with its fix.

The report is data. How it looks in a terminal is in `regard.cli`; here it prints as plain text, as JSON and
as a table in a notebook.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

MARKS = {"passed": "✓", "failed": "✗", "caution": "!", "left out": "–"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its status is "passed", "failed", "caution" or "left out"."""

    name: str
    status: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class Diagnosis:
    """A mistake by name: what it is, what it does, how to mend it, and how well it explains the numbers."""

    name: str
    what: str  # the evidence in a sentence
    effect: str
    fix: str
    error: float | None = None  # what remains between the code's numbers and the mistake's, relative
    caution: bool = False


@dataclass
class Report:
    """The outcome of `regard.check`."""

    subject: str
    assumed: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    example: str = ""  # the smallest failing case, where no mistake explains it
    seconds: float = 0.0
    strict: bool = False

    @property
    def ok(self) -> bool:
        """Whether the attention is right: nothing failed (and, if strict, nothing calls for caution)."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        wrong = ("failed", "caution") if self.strict else ("failed",)
        return [check for check in self.checks if check.status in wrong]

    @property
    def cautions(self) -> list[Check]:
        return [check for check in self.checks if check.status == "caution"]

    @property
    def passed(self) -> list[Check]:
        return [check for check in self.checks if check.status == "passed"]

    @property
    def left_out(self) -> list[Check]:
        return [check for check in self.checks if check.status == "left out"]

    @property
    def verdict(self) -> str:
        """The outcome in a line."""
        if not self.ok:
            return f"{self.subject} is WRONG: {_counted(len(self.failures), 'check')} failed"
        if any(check.name == "output" for check in self.left_out):
            return (
                f"{self.subject}: nothing wrong was found in {_counted(len(self.passed), 'check')}, but its "
                "output "
                "could not be compared"
            )
        careful = f", with {_counted(len(self.cautions), 'caution')}" if self.cautions else ""
        return f"{self.subject} is right{careful}: {_counted(len(self.passed), 'check')} passed"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON."""
        data = asdict(self)
        for diagnosis in data["diagnoses"]:
            error = diagnosis["error"]
            diagnosis["error"] = error if error is None or math.isfinite(error) else None
        return {"ok": self.ok, "verdict": self.verdict} | data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """The report that `to_dict` described."""
        known = {key: data[key] for key in ("subject", "assumed", "example", "seconds", "strict")}
        checks = [Check(**check) for check in data["checks"]]
        return cls(**known, checks=checks, diagnoses=[Diagnosis(**d) for d in data["diagnoses"]])

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        lines = [self.verdict, f"  assumed  {'; '.join(self.assumed)}"] if self.assumed else [self.verdict]
        for check in (*self.failures, *(c for c in self.cautions if c not in self.failures)):
            lines += _wrapped(f"  {MARKS[check.status]} ", str(check))
        for diagnosis in self.diagnoses:
            lines += ["", f"  {diagnosis.name}" + (" (caution)" if diagnosis.caution else "")]
            lines += _wrapped("    ", diagnosis.what) + _wrapped("    ", diagnosis.effect)
            lines += _wrapped("    fix: ", diagnosis.fix)
        if self.example:
            lines += ["", *("  " + line for line in self.example.splitlines())]
        lines.append("")
        if self.passed:
            lines += _wrapped("  ✓ ", ", ".join(check.name for check in self.passed))
        for check in self.left_out:
            lines += _wrapped("  – left out ", str(check))
        return "\n".join([*lines, f"  {self.seconds:.1f} s"])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{MARKS[check.status]}</td><td>{html.escape(check.name)}</td>"
            f"<td style='text-align:left'>{html.escape(check.detail)}</td></tr>"
            for check in (*self.failures, *self.cautions, *self.passed, *self.left_out)
        ]
        told = "".join(
            f"<p><b>{html.escape(d.name)}</b>: {html.escape(d.what)} {html.escape(d.effect)}<br>"
            f"<code>{html.escape(d.fix)}</code></p>"
            for d in self.diagnoses
        )
        example = f"<pre>{html.escape(self.example)}</pre>" if self.example else ""
        colour = "#2e7d32" if self.ok else "#c62828"
        verdict = f"<p style='color:{colour}'><b>{html.escape(self.verdict)}</b></p>"
        return f"{verdict}{told}{example}<table>{''.join(rows)}</table>"


def _counted(n: int, word: str) -> str:
    return f"{n} {word}" + ("" if n == 1 else "s")


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False
    )
