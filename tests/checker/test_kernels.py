"""A mistake in the core of a kernel is the first diagnosis in every layout in which it can be made.

The mistakes that only kernels have are planted by `test_planted`.
"""

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import KERNEL_TEMPLATES, NAMES, read_program
from tests.checker.planting import load
from tests.sampling import share

MASKED = {
    "no-mask",
    "one-token-ahead",
    "mask-after-softmax",
    "masked-with-zero",
    "weak-mask-value",
    "finite-mask-value",
    "softcap-after-mask",
}
# One query sees every key, and cannot be taken for one: these change nothing, or do not run.
ONE_QUERY = MASKED | {"one-projection", "query-key-swapped", "roles-shuffled", "softmax-over-batch"}
# A part of the keys has a length, a softmax and gradients of its own, and no mask or cap. These mistakes
# are the same in parts as in the whole.
IN_PARTS = {
    "no-scale",
    "scaled-twice",
    "scaled-by-width",
    "scale-from-model-width",
    "scale-multiplied",
    "grouped-heads-tiled",
    "key-value-swapped",
    "zero-times-infinity",
    "softmax-overflow",
    "precision-lost",
}


CORE = read_program("attend")  # of the kernels of several layouts
WRAPPERS = [kind for kind, source in KERNEL_TEMPLATES.items() if source.startswith(CORE)]


def core_plants(mistake):
    """The swaps that plant a mistake in the core of every kernel; () if it does not apply there."""
    swaps = mistake.plants.get("function", ())
    return swaps if all(old in CORE for old, _ in swaps) else ()


def applies(name, kind):
    """Whether a mistake of the core can be made, and seen, in a layout."""
    return name in IN_PARTS if kind == "split" else kind != "paged" or name not in ONE_QUERY


PLANTED = [
    (name, kind)
    for name, mistake in CATALOGUE.items()
    for kind in WRAPPERS
    if core_plants(mistake) and applies(name, kind)
]


@pytest.mark.parametrize(("name", "kind"), share(PLANTED, 10))
def test_a_mistake_in_the_core_is_named_in_every_layout(name, kind):
    source = KERNEL_TEMPLATES[kind]
    for old, new in core_plants(CATALOGUE[name]):
        source = source.replace(old, new)
    report = regard.checker.check(load(source, NAMES[kind]))
    assert report.diagnoses, str(report)
    assert report.diagnoses[0].name == name, str(report)
