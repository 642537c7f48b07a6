"""Every mistake, planted in a right function, a right head or a right multi-head layer, is named first.

A run plants some of the mistakes, the next day others.
"""

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import NAMES, TEMPLATES, plant_mistake
from tests.checker.planting import load
from tests.sampling import share

# A function cannot know whether a cache or a batch is meant: what it does there is a warning.
ONLY_WARNINGS = {("top-left-causal", "function"), ("dot-t-on-a-batch", "function")}


# Into programs of several processes, `test_distributed` plants them.
PLANTED = [(name, kind) for name, m in CATALOGUE.items() for kind in m.plants if kind in TEMPLATES]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_templates_are_right(kind):
    report = regard.checker.check(load(TEMPLATES[kind], NAMES[kind]))
    assert report.ok, str(report)
    assert report.diagnoses == []
    assert report.warnings == []


@pytest.mark.parametrize(("name", "kind"), share(PLANTED, 5))
def test_a_planted_mistake_is_the_first_diagnosis(name, kind):
    report = regard.checker.check(load(plant_mistake(CATALOGUE[name], kind), NAMES[kind]))
    warning = CATALOGUE[name].warning or (name, kind) in ONLY_WARNINGS
    assert report.ok is warning, str(report)
    assert report.diagnoses[0].name == name, str(report)
    assert report.diagnoses[0].warning is warning
    assert report.failures or report.warnings
