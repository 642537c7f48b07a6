"""A mistake in the core of a kernel is the first diagnosis in every layout in which it can be made.

The mistakes that only kernels have are planted by `test_planted`.
"""

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE
from regard.checker.kernel_examples import KERNEL_NAMES, KERNEL_TEMPLATES, WRAPPERS, core_plants
from tests.checker.planting import load

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
# A part of the keys has no mask, no cap and another length; two of its numbers are merged.
SPLIT = ONE_QUERY | {
    "scale-by-length",
    "softmax-over-queries",
    "softmax-over-heads",
    "softmax-twice",
    "softmax-missing",
    "transposed-mask",
    "missing-diagonal",
    "mask-added-as-zero-one",
    "top-left-causal",
    "softcap-dropped",
    "weights-detached",
}
NOT_APPLICABLE = {"paged": ONE_QUERY, "split": SPLIT}
PLANTED = [
    (name, kind)
    for name, mistake in CATALOGUE.items()
    for kind in WRAPPERS
    if core_plants(mistake) and name not in NOT_APPLICABLE.get(kind, ())
]


@pytest.mark.parametrize(("name", "kind"), PLANTED)
def test_a_mistake_in_the_core_is_named_in_every_layout(name, kind):
    source = KERNEL_TEMPLATES[kind]
    for old, new in core_plants(CATALOGUE[name]):
        source = source.replace(old, new)
    report = regard.checker.check(load(source, KERNEL_NAMES[kind]))
    assert report.diagnoses, str(report)
    assert report.diagnoses[0].name == name, str(report)
