"""Items of different lengths, pages, splits and sink logits: the oracle, its variants and the mistakes."""

from dataclasses import replace

import pytest
import torch

from regard.checker.catalogue import THEMES
from regard.checker.oracle.oracle import expected_answer, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.oracle.wiring import Wiring
from tests.checker.oracle.by_steps import answer_by_steps


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def question(**changes):
    sizes = changes.pop("sizes", (3, 4, 9))
    q, k, v = (normal(sizes[0], heads, sizes[2], 8) for heads in (sizes[1], 2, 2))
    return replace(Question("output", q, k, v), **changes)


LENGTHS = ((3, 5, 2), (5, 9, 2))
QUESTIONS = {
    "packed": {"layout": "packed", "lengths": LENGTHS},
    "packed, causal": {"layout": "packed", "lengths": LENGTHS, "causal": True},
    "pages": {"layout": "paged or not", "lengths": LENGTHS, "page": 4},
    "cap and pages": {"layout": "paged or not", "lengths": LENGTHS, "page": 4, "softcap": 2.0},
    "splits": {"layout": "cache", "splits": 3},
    "cache": {"layout": "cache", "lengths": LENGTHS},
    "blocks": {"sizes": (1, 2, 150)},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)},
    "both sides": {"window": 3, "ahead": 2},
    "mask": {
        "mask": torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.7,
        "layout": "interface",
    },
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_correct_variant_is_the_oracle(name):
    case = question(**QUESTIONS[name])
    assert relative_error(CORRECT.answer(case, Wiring()), answer_by_steps(case, Wiring())) < 1e-14


def test_an_item_alone_has_the_same_answer():
    case = question(**QUESTIONS["packed, causal"])
    answer = expected_answer(case, Wiring())
    for b, (T, S) in enumerate(zip(*LENGTHS, strict=True)):
        alone = Question(
            "alone", case.q[b : b + 1, :, :T], case.k[b : b + 1, :, :S], case.v[b : b + 1, :, :S]
        )
        expected = expected_answer(replace(alone, causal=True), Wiring())
        torch.testing.assert_close(answer.output[b : b + 1, :, :T], expected.output)
        torch.testing.assert_close(answer.lse[b : b + 1, :, :T], expected.lse)
        assert answer.free[b, :, T:].all()


def test_gradients_flow_to_every_item():
    case = question(**QUESTIONS["packed"])
    case = case.map_inputs(lambda x: x.requires_grad_())
    CORRECT.answer(case, Wiring()).output.sum().backward()
    assert all(x.grad.abs().amax((1, 2, 3)).gt(0).all() for x in (case.v,))


def test_every_mistake_of_kernels_changes_some_answer():
    cases = [question(**changes) for changes in QUESTIONS.values()]
    right = [(case, expected_answer(case, Wiring())) for case in cases]
    for mistake in THEMES["kernels"]:
        for change in mistake.changes:
            variant = replace(CORRECT, **change)
            assert any(
                relative_error(variant.answer(case, Wiring()), answer) > 1e-3
                for case, answer in right
                if not mistake.layouts or case.layout in mistake.layouts
            ), (mistake.name, change)
