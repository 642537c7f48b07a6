"""Kernels in every layout: the right ones are right, and a planted mistake is the first diagnosis."""

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE
from regard.checker.kernel_examples import KERNEL_NAMES, KERNEL_TEMPLATES, WRAPPERS, core_plants
from tests.checker.planting import load

# A decode kernel has one query and no causal argument: there is no mask to make mistakes with.
ONE_QUERY = {"paged", "split"}


def planted(name, kind):
    source = KERNEL_TEMPLATES[kind]
    for old, new in core_plants(CATALOGUE[name]):
        source = source.replace(old, new)
    return load(source, KERNEL_NAMES[kind])


CORE = [(name, kind) for name, m in CATALOGUE.items() if core_plants(m) for kind in WRAPPERS]


@pytest.mark.parametrize(("name", "kind"), CORE)
def test_a_mistake_in_the_core_is_named_in_every_layout(name, kind):
    report = regard.checker.check(planted(name, kind))
    assert report.diagnoses, str(report)
    assert report.diagnoses[0].name == name, str(report)
