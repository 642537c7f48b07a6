"""The corpus: right implementations are called right, wrong ones wrong, and mistakes by their names.

Of two mistakes at once, one at least is named.

The first entry of each kind stands for it: of a mistake, of what is right in a file, of a reason to decide
nothing. A run checks a seventh of the kinds; `REGARD_ALL=1` checks every entry.
"""

import itertools
import os
import random

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
    report = check(load(both(kind, first, second), NAMES[kind]))
    assert not report.ok, str(report)
    assert {first, second} & {d.name for d in report.diagnoses}, str(report)
