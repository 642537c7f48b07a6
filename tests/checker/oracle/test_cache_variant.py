"""Attention continued with a cache: correctly it is attention of the whole, with a mistake it is not."""

from dataclasses import replace

import pytest
import torch

from regard.checker.catalogue import CATALOGUE
from regard.checker.oracle.cache_variant import CORRECT_CACHE
from regard.checker.oracle.oracle import expected_answer, relative_difference
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Affine, Rotation, Wiring
from tests.checker.oracle.by_steps import normal

CUTS = [(1,) * 6, (2, 2, 2), (1, 5), (4, 2), (3, 3)]


def wired(rotary):
    layers = [Affine(normal(20, 16)), Affine(normal(20, 16)), Affine(normal(20, 16)), Affine(normal(16, 20))]
    rotate = Rotation(torch.tensor([1.0, 0.1], dtype=torch.float64)) if rotary else None
    return Wiring(4, 4, *layers, splits=True, width=20, rotate=rotate)


@pytest.fixture
def question():
    x = normal(2, 6, 20)
    return Question("cache", x, x, x, causal=True)


@pytest.mark.parametrize("rotary", [False, True])
def test_a_correct_cache_gives_the_whole(rotary, question):
    wiring = wired(rotary)
    whole = expected_answer(question, wiring).output
    for change in ({}, {"new": "appended"}, {"slots": 32}):
        for cut in CUTS:
            output = replace(CORRECT_CACHE, **change).answer(question, wiring, cut)
            assert relative_difference(output, whole) < 1e-12, (change, cut)


def test_every_mistake_of_a_cache_changes_some_output(question):
    wiring = wired(rotary=True)
    whole = expected_answer(question, wiring).output
    for mistake in CATALOGUE.values():
        for change in mistake.cache_changes:
            variant = replace(CORRECT_CACHE, **change)
            errors = (relative_difference(variant.answer(question, wiring, cut), whole) for cut in CUTS)
            assert any(error > 1e-3 for error in errors), (mistake.name, change)
