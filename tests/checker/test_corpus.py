"""The corpus: right implementations are called right, wrong ones wrong, and mistakes by their names.

`python -m tests.checker.corpus` checks all, which takes minutes.
"""

import pytest

from regard.checker import check
from tests.checker.corpus import Entry, backward_passes, calls, decode_steps, entries, many_heads, weak_masks
from tests.sampling import share

ENTRIES = entries()
EVERY_RUN = [
    entry
    for module in (backward_passes, calls, decode_steps, many_heads, weak_masks)
    for entry in module.ENTRIES
]
OTHERS = [entry for entry in ENTRIES if entry not in EVERY_RUN]


@pytest.mark.parametrize("entry", [*EVERY_RUN, *share(OTHERS, 20)], ids=lambda entry: entry.name)
def test_the_verdict(entry: Entry) -> None:
    report = check(entry.thing, **entry.options)
    assert report.verdict == entry.verdict, str(report)
    if entry.mistakes:
        assert report.diagnoses[0].name in entry.mistakes, str(report)
    assert entry.why in "\n".join([report.summary, *map(str, report.failures)]), str(report)


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_there_are_enough(verdict: str) -> None:
    assert sum(entry.verdict == verdict for entry in ENTRIES) >= 60
