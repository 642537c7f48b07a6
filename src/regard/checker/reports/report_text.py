"""The lines of a report, what matters first. `str(report)` joins them, and `regard check` colours them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, NamedTuple

from regard.support.characters import escape

if TYPE_CHECKING:
    from regard.checker.reports.report import Diagnosis, Report

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
        lines += _warning(diagnosis, width)
    for check in (check for check in report.warnings if check.mistake not in explained):
        lines += _paragraph(f"  {MARKS['warning']} ", str(check), width, "warning")
    return [Line(""), *lines] if lines else []


def _warning(diagnosis: Diagnosis, width: int) -> list[Line]:
    lines = _paragraph(f"  {MARKS['warning']} ", f"{diagnosis.name}: {diagnosis.what}", width, "warning")
    return lines + _paragraph("    fix: ", diagnosis.fix, width, "fix")


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
