"""The corpus: right implementations are called right, wrong ones wrong, and mistakes by their names."""

import os

import pytest

from regard.checker import check
from tests.checker.corpus import Entry, entries

ENTRIES = entries()
# Minutes in all: every third one here; `REGARD_ALL=1` or `python -m tests.checker.corpus` checks all.
CHECKED = ENTRIES if os.environ.get("REGARD_ALL") else ENTRIES[::3]


@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.name)
def test_the_verdict(entry: Entry) -> None:
    report = check(entry.thing, **entry.options)
    assert report.verdict == entry.verdict, str(report)
    if entry.mistakes:
        assert report.diagnoses[0].name in entry.mistakes, str(report)
    assert entry.why in report.summary, str(report)


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_there_are_enough(verdict: str) -> None:
    assert sum(entry.verdict == verdict for entry in ENTRIES) >= 60
