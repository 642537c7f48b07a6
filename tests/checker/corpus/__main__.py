"""Prints the verdict of every entry: `python -m tests.checker.corpus [words of names …]`.

PART=2/4 in the environment judges every fourth entry, from the third on, so that parts can run side by side.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

from regard.checker import check
from regard.checker.reports.report import Report
from tests.checker.corpus import Entry, entries


def reason(report: Report) -> str:
    """Return what explains the verdict: the mistake's name, or why nothing was decided."""
    if report.diagnoses:
        return ", ".join(diagnosis.name for diagnosis in report.diagnoses)
    return report.undecided or "; ".join(str(check) for check in report.failures)


def verdict(entry: Entry) -> tuple[str, str, float]:
    """Return the verdict on an entry, its reason, and the seconds that it took."""
    try:
        report = check(entry.thing, **entry.options)
    except Exception as error:
        return "not run", f"{type(error).__name__}: {error}", 0.0
    return report.verdict, reason(report), report.seconds


def main(words: list[str]) -> int:
    """Print the table of the entries whose name contains one of the words; 1 if one is not as expected."""
    counts: Counter[tuple[str, str]] = Counter()
    part, parts = (int(number) for number in os.environ.get("PART", "0/1").split("/"))
    for entry in entries()[part::parts]:
        if words and not any(word in entry.name for word in words):
            continue
        found, why, seconds = verdict(entry)
        counts[entry.verdict, found] += 1
        mark = " " if found == entry.verdict else "✗"
        print(f"{mark} {found:<10} {seconds:4.1f} s  {entry.name:<44} {why[:240]}", flush=True)
    for (expected, found), number in sorted(counts.items()):
        print(f"{number:4} expected {expected}, found {found}")
    return int(any(expected != found for expected, found in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
