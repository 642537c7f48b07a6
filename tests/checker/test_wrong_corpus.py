"""Nothing that is wrong is called right, and its mistake is named first."""

import pytest

from regard.checker import check
from tests.checker.corpus import entries

WRONG = [entry for entry in entries() if entry.verdict == "wrong"]


def test_the_corpus_is_large():
    assert len(WRONG) >= 60


@pytest.mark.parametrize("entry", WRONG, ids=lambda entry: entry.name)
def test_a_wrong_implementation_is_called_wrong_and_its_mistake_is_named(entry):
    report = check(entry.thing, **entry.options)
    assert report.verdict == "wrong", str(report)
    failing = [diagnosis.name for diagnosis in report.diagnoses if not diagnosis.warning]
    assert not entry.mistakes or failing[0] in entry.mistakes, str(report)
