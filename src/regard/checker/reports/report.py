"""The result of a check: a verdict, the checks that passed and failed, and the diagnosis with its fix.

The verdict is "right" only if the output was compared and agrees, "wrong" only if something is known to be
wrong, and "undecided" otherwise. A report is data. Here it becomes lines of text, what matters first, which
`regard check` colours, and JSON.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from regard.support.characters import escape

WIDTH = 100  # columns
MARKS = {"passed": "✓", "failed": "✗", "warning": "!", "skipped": "–", "untried": "?"}
LAYER_MARKS = {"right": "✓", "wrong": "✗", "undecided": "?"}
_STYLES = {"right": "passed", "wrong": "failed", "undecided": "untried"}
_WORDS = {"skipped": "skipped ", "untried": "not tried: "}


class Line(NamedTuple):
    """One line of a report: its text, its style, and how many characters from the start have the style.

    A style is a verdict ("right" …), the status of a check ("failed" …), "name", "fix" or "".
    """

    text: str
    style: str = ""
    styled: int = 0


def report_lines(report: Report, width: int = WIDTH) -> list[Line]:
    """Return the lines of a report: verdict, failures, mistakes, warnings, and what else was checked.

    What was assumed matters most for code that is not wrong, and least for code that is.
    """
    lines = _paragraph("", report.summary, width, report.verdict, whole=True)
    assumed = _paragraph("  assumed ", "; ".join(report.assumptions), width, "skipped")
    lines += _failures(report, width) if report.verdict == "wrong" else assumed
    for layer in report.layers:
        mark = f"  {LAYER_MARKS[layer.verdict]} "
        lines += _paragraph(mark, str(layer), width, _STYLES[layer.verdict])
    for diagnosis in (d for d in report.diagnoses if not d.warning):
        lines += [Line(""), Line(f"  {diagnosis.name}", "failed", 2 + len(diagnosis.name))]
        lines += _paragraph("    ", f"{diagnosis.what} {diagnosis.effect}", width)
        lines += _paragraph("    fix: ", diagnosis.fix, width, "fix")
    if report.example:
        lines += [Line(""), *(Line(f"  {line}") for line in escape(report.example).split("\n"))]
    lines += _warnings(report, width)
    lines.append(Line(""))
    if report.passed:
        lines += _paragraph("  ✓ ", ", ".join(check.name for check in report.passed), width, "passed")
    for check in report.skipped:
        lines += _paragraph(
            f"  {MARKS[check.status]} ", f"{_WORDS[check.status]}{check}", width, check.status
        )
    lines += assumed if report.verdict == "wrong" else []
    return [*lines, Line(f"  {report.seconds:.1f} s", "skipped", WIDTH)]


def _failures(report: Report, width: int) -> list[Line]:
    """Return the checks that failed. Those in which only the numbers differ share a line."""
    layers = {layer.name for layer in report.layers}  # which have lines of their own
    failed = [check for check in report.checks if check.status == "failed" and check.name not in layers]
    differing = [check for check in failed if check.detail.startswith("differs by ")]
    lines: list[Line] = []
    for check in failed:
        if check in differing[1:]:
            continue
        text = str(check)
        if differing[1:] and check is differing[0]:
            text += f"; also {', '.join(other.name for other in differing[1:])}"
        lines += _paragraph(f"  {MARKS['failed']} ", text, width, "failed")
    return lines


def _warnings(report: Report, width: int) -> list[Line]:
    """Return the mistakes that only warn, each with its fix, and warnings that no mistake explains."""
    named = [d for d in report.diagnoses if d.warning]
    explained = {d.name for d in report.diagnoses}
    lines: list[Line] = []
    for diagnosis in named:
        named_so = f"{diagnosis.name}: {diagnosis.what}"
        lines += _paragraph(f"  {MARKS['warning']} ", named_so, width, "warning")
        lines += _paragraph("    fix: ", diagnosis.fix, width, "fix")
    for check in (check for check in report.warnings if check.mistake not in explained):
        lines += _paragraph(f"  {MARKS['warning']} ", str(check), width, "warning")
    return [Line(""), *lines] if lines else []


def _paragraph(start: str, text: str, width: int, style: str = "", *, whole: bool = False) -> list[Line]:
    """Wrap a text; `start` begins the first line, and the others are indented by as much.

    `style` is that of `start`, or of the `whole` text.
    """
    if not text:
        return []
    # Names and errors of foreign code may hold control characters of a terminal.
    wrapped = textwrap.wrap(
        escape(text),
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    styled = [len(line) for line in wrapped] if whole else [len(start), *(0 for _ in wrapped[1:])]
    return [Line(line, style, count) for line, count in zip(wrapped, styled, strict=True)]


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    The status is "passed", "failed", "warning", "skipped" (the code does not offer it) or "untried" (it can
    be tried if the caller says how, as the detail says).
    """

    name: str
    status: str
    detail: str = ""
    mistake: str = ""  # the mistake of the catalogue that explains it, if any

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class Diagnosis:
    """A mistake of the catalogue that explains the code's numbers."""

    name: str
    what: str  # the evidence, in a sentence
    effect: str  # the consequence for a model
    fix: str
    error: float | None = None  # the relative difference between the code's numbers and the mistake's
    distance: float | None = None  # from the right numbers, in tolerances; inf for NaN or an error
    warning: bool = False  # whether it does not fail the check


@dataclass(frozen=True)
class LayerVerdict:
    """One attention layer of a model: its verdict, and the mask that was in effect when the model ran."""

    name: str
    """The module's name in the model: `transformer.h.0.attn`."""
    kind: str
    """Its class."""
    verdict: str
    """ "right", "wrong" or "undecided"."""
    mask: str = ""
    """Which keys queries saw: "causal & window(4)"; "" if its attention could not be read."""
    mistake: str = ""
    """The mistake of the catalogue, if it is wrong and has a name."""
    detail: str = ""
    """Why it is wrong or undecided."""

    def __str__(self) -> str:
        named = f" ({self.mistake})" if self.mistake else ""
        mask = f", mask {self.mask}" if self.mask else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.name}  {self.kind} is {self.verdict}{named}{mask}{detail}"


@dataclass
class Report:
    """The result of `regard.check`.

    `str(report)` is the whole report; `repr(report)` is its verdict in one line.
    """

    subject: str
    assumptions: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    example: str = ""  # the smallest failing case, if no mistake explains it
    seconds: float = 0.0
    strict: bool = False
    undecided: str = ""  # why there is no verdict and what it would take, if so
    layers: list[LayerVerdict] = field(default_factory=list)  # of a model or a block
    equals: str = (
        ""  # what right code was found to be, if it is not plain attention: "attention in a window of 5"
    )

    @property
    def verdict(self) -> str:
        """ "right", "wrong" or "undecided"."""
        if self.failures:
            return "wrong"
        compared = any(check.name == "output" for check in self.passed)
        if self.undecided or not compared or (self.strict and self.untried):
            return "undecided"
        return "right"

    @property
    def ok(self) -> bool:
        """Whether the verdict is "right": the output was compared and agrees, and nothing else is wrong."""
        return self.verdict == "right"

    @property
    def failures(self) -> list[Check]:
        """The checks that failed; with `strict`, warnings too."""
        return self._with_status("failed", *(("warning",) if self.strict else ()))

    @property
    def warnings(self) -> list[Check]:
        """The checks with a warning."""
        return self._with_status("warning")

    @property
    def passed(self) -> list[Check]:
        """The checks that passed."""
        return self._with_status("passed")

    @property
    def skipped(self) -> list[Check]:
        """The checks that were not made; their detail says why, or how to have them made."""
        return self._with_status("untried", "skipped")

    @property
    def untried(self) -> list[Check]:
        """The checks that were not made but can be, if the caller says how."""
        return self._with_status("untried")

    def _with_status(self, *statuses: str) -> list[Check]:
        return [check for status in statuses for check in self.checks if check.status == status]

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.verdict == "wrong":
            named = next((d.name for d in self.diagnoses if self.strict or not d.warning), None)
            failed = f"{_count(len(self.failures), 'check')} failed"
            return f"{self.subject} is WRONG: {f'{named} ({failed})' if named else failed}"
        if self.verdict == "undecided":
            return f"{self.subject} is UNDECIDED: {self.undecided or self._what_is_missing()}"
        reading = f", as {self.equals}" if self.equals else ""
        warned = f"{reading}, with {_count(len(self.warnings), 'warning')}" if self.warnings else reading
        passed = f"{_count(len(self.passed), 'check')} passed"
        if self.untried:
            return f"{self.subject} is right{warned}, as far as tried: {self._untried_names()} ({passed})"
        return f"{self.subject} is right{warned}: {passed}"

    def _untried_names(self) -> str:
        return ", ".join(dict.fromkeys(f"no {check.name}" for check in self.untried))

    def _what_is_missing(self) -> str:
        if any(check.name == "output" for check in self.passed):
            return f"strict, and right only as far as tried: {self._untried_names()}"
        return "its output was not compared"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data that JSON can hold."""
        data = asdict(self)
        for diagnosis in data["diagnoses"]:
            for name in ("error", "distance"):
                number = diagnosis[name]
                # JSON has no number for inf.
                diagnosis[name] = number if number is None or math.isfinite(number) else None
        return {"verdict": self.verdict, "ok": self.ok, "summary": self.summary} | data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Return the report that `to_dict` made `data` of."""
        parts = {"checks": Check, "diagnoses": Diagnosis, "layers": LayerVerdict}
        own: dict[str, Any] = {f.name: data[f.name] for f in fields(cls)}
        return cls(**own | {name: [kind(**part) for part in own[name]] for name, kind in parts.items()})

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON, indented by `indent` spaces; None puts it on one line."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        return "\n".join(line.text for line in report_lines(self))

    def __repr__(self) -> str:
        return escape(f"Report({self.summary})")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _count(n: int, word: str) -> str:
    return f"{n} {word}" + ("" if n == 1 else "s")
