"""Two mistakes at once are caught, and at least one of them is named."""

import itertools
import random

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.examples import NAMES, TEMPLATES
from tests.checker.planting import load
from tests.sampling import share

# Two that are in truth a third: swapping two roles twice shuffles all three, an inverted transposed mask has
# lost its diagonal, and on two dimensions the second axis is the width; and two that leave nothing but NaN.
ONE_OF_ITS_OWN = [
    {m.name for m in THEMES["query, key and value"]},
    {"inverted-mask", "transposed-mask", "missing-diagonal"},
    {"softmax-over-batch", "missing-diagonal"},
    {"softmax-over-batch", "inverted-mask"},
    {"softmax-over-batch", "heads-merged-by-view"},
    {"scale-from-model-width", "dot-t-on-a-batch"},
]


def both(kind, first, second):
    """The template with both mistakes in it, or None where they want the same line."""
    text = TEMPLATES[kind]
    for name in (first, second):
        for old, new in CATALOGUE[name].plants[kind]:
            if old not in text:
                return None
            text = text.replace(old, new)
    return text


def drawn(kind, count):
    # A norm on one side is recognised only once a norm on both is supposed: that would be a third guess.
    mistakes = [m for m in CATALOGUE.values() if m.name != "one-side-normalised"]
    names = [m.name for m in mistakes if kind in m.plants and not m.warning]
    pairs = [pair for pair in itertools.combinations(names, 2) if both(kind, *pair) is not None]
    pairs = [pair for pair in pairs if not any(set(pair) <= group for group in ONE_OF_ITS_OWN)]
    return [(kind, *pair) for pair in random.Random(4).sample(pairs, min(count, len(pairs)))]


@pytest.mark.parametrize(
    ("kind", "first", "second"), share([*drawn("function", 6), *drawn("head", 5), *drawn("layer", 7)], 18)
)
def test_a_pair_is_caught_and_one_is_named(kind, first, second):
    report = regard.checker.check(load(both(kind, first, second), NAMES[kind]))
    assert not report.ok, str(report)
    assert {first, second} & {d.name for d in report.diagnoses}, str(report)
