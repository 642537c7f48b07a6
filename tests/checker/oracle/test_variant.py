"""The recipes with which mistakes are recognised: unchanged they are right, changed they differ."""

from dataclasses import replace

import pytest
import torch

from regard.checker.catalogue import CATALOGUE
from regard.checker.oracle.oracle import apart, truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT
from regard.checker.oracle.wiring import Affine, Wiring


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def question(**changes):
    q, k, v = normal(2, 4, 6, 8), normal(2, 2, 6, 8), normal(2, 2, 6, 5)
    return replace(Question("output", q, k, v), **changes)


MASK = torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) < 0.6
MASK |= torch.eye(6, dtype=torch.bool)
QUESTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "mask": {"mask": MASK},
    "padding": {"padding": torch.arange(6) < torch.tensor([[4], [6]])},
    "window": {"causal": True, "window": 2},
    "softcap": {"causal": True, "softcap": 2.0},
    "bias": {"bias": torch.linspace(-1, 1, 36, dtype=torch.float64).view(6, 6)},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_right_recipe_is_the_oracle(name):
    asked = question(**QUESTIONS[name])
    assert apart(RIGHT.answer(asked, Wiring()), truth(asked, Wiring())) < 1e-14


def test_the_right_recipe_is_the_oracle_with_weights_biases_and_a_cache():
    layers = {name: Affine(normal(20, 16), normal(16)) for name in ("query", "out")}
    layers["out"] = Affine(normal(16, 20), normal(20))
    layers |= {name: Affine(normal(20, 8), normal(8)) for name in ("key", "value")}
    wiring = Wiring(4, 2, **layers, splits=True, width=20, sinks=normal(4))
    x = normal(2, 7, 20)
    for start in (0, 4):
        asked = Question("output", x[:, start:], x, x, causal=True)
        assert apart(RIGHT.answer(asked, wiring), truth(asked, wiring)) < 1e-14


@pytest.mark.parametrize("name", [name for name, m in CATALOGUE.items() if m.changes])
def test_every_mistake_changes_some_answer(name):
    wiring = Wiring(
        4,
        2,
        Affine(normal(20, 16)),
        Affine(normal(20, 8)),
        Affine(normal(20, 8)),
        Affine(normal(16, 20)),
        splits=True,
        width=20,
    )
    x = 90 * normal(2, 6, 20)
    askeds = [
        replace(Question("output", scale * x, scale * x, scale * x), **changes).to(torch.float32)
        for changes in QUESTIONS.values()
        for scale in (1 / 90, 1)
    ]
    for change in CATALOGUE[name].changes:
        if "detach" in change:
            continue  # only gradients differ
        recipe = replace(RIGHT, **change)
        differs = False
        for asked in askeds + [replace(asked, q=asked.q[:, 4:]) for asked in askeds[2:4]]:
            try:
                answer = recipe.answer(asked, wiring)
            except RuntimeError:
                continue  # the roles' shapes do not fit where there are fewer key heads
            right = RIGHT.answer(asked, wiring)
            hidden = [torch.zeros(1, dtype=torch.bool) if a.free is None else a.free for a in (answer, right)]
            free = bool((hidden[0] != hidden[1]).any())
            differs = differs or free or not apart(answer, right) < 1e-4
        if change.get("roles", (0, 1, 2)) != (0, 1, 2):
            continue  # needs as many key heads as query heads: planted in test_planted
        assert differs, change
