"""The corpus: right implementations are called right, wrong ones wrong, and mistakes by their names.

The first entry of each kind stands for it: of a mistake, of what is right in a file, of a reason to decide
nothing. A run checks a fifth of the kinds; `REGARD_ALL=1` checks every entry.
"""

import os

import pytest

from regard.checker import check
from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.examples import NAMES, TEMPLATES
from tests.checker.corpus import entries
from tests.checker.planting import load
from tests.sampling import share

ENTRIES = entries()


def sampled():
    """Return a seventh of what is the first of its kind."""
    kinds = {}
    for module, entry in ENTRIES:
        kind = entry.mistakes[:1] or (entry.verdict, entry.why if entry.verdict == "undecided" else module)
        kinds.setdefault(kind, (module, entry))
    chosen = ENTRIES if os.environ.get("REGARD_ALL") else share(kinds.values(), 7)
    return [pytest.param(entry, id=f"{module}-{entry.name}") for module, entry in chosen]


@pytest.mark.parametrize("entry", sampled())
def test_the_verdict(entry):
    entry.judge()


@pytest.mark.parametrize("kind", share(TEMPLATES, 5))
def test_the_programs_in_which_mistakes_are_planted_are_right(kind):
    report = check(load(TEMPLATES[kind], NAMES[kind]))
    assert report.ok, str(report)
    assert report.diagnoses == report.warnings == []


def test_every_mistake_is_made_and_much_is_right():
    made = {name for _, entry in ENTRIES for name in entry.mistakes}
    assert made | {mistake.name for mistake in THEMES["several processes"]} == set(CATALOGUE)
    assert sum(entry.verdict == "right" for _, entry in ENTRIES) >= 150
