"""The variants with which mistakes are recognised: unchanged they are right, changed they differ."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.oracle.oracle import expected_answer, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.oracle.wiring import Affine, Rotation, Wiring
from tests.checker.oracle.by_steps import answer_by_steps, normal


def question(*, sizes=(2, 4, 6), E=5, **changes):
    B, H, T = sizes
    q, k, v = normal(B, H, T, 8), normal(B, 2, T, 8), normal(B, 2, T, E)
    return replace(Question("output", q, k, v), **changes)


MASK = torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) < 0.6
MASK |= torch.eye(6, dtype=torch.bool)
QUESTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "mask": {"mask": MASK},
    "a mask for each item": {
        "mask": torch.stack([MASK, MASK.flip(0) | torch.eye(6, dtype=torch.bool)])[:, None]
    },
    "padding": {"padding": torch.arange(6) < torch.tensor([[4], [6]])},
    "window": {"causal": True, "window": 2},
    "both sides": {"window": 2, "ahead": 1},
    "softcap": {"causal": True, "softcap": 2.0},
    "not causal": {"flag": False},
    "a row without a visible key": {"mask": MASK & (torch.arange(6) != 2)[:, None]},
    "ALiBi": {"rule": regard.causal & regard.alibi(4)},
    "bias": {"bias": torch.linspace(-1, 1, 36, dtype=torch.float64).view(6, 6)},
}


LENGTHS = ((3, 5, 2), (5, 9, 2))
NINE = {"sizes": (3, 4, 9), "E": 8}
OF_KERNELS = {
    "packed": NINE | {"layout": "packed", "lengths": LENGTHS},
    "packed, causal": NINE | {"layout": "packed", "lengths": LENGTHS, "causal": True},
    "pages": NINE | {"layout": "paged or not", "lengths": LENGTHS, "page": 4},
    "cap and pages": NINE | {"layout": "paged or not", "lengths": LENGTHS, "page": 4, "softcap": 2.0},
    "splits": NINE | {"layout": "cache", "splits": 3},
    "cache": NINE | {"layout": "cache", "lengths": LENGTHS},
    "blocks": {"sizes": (1, 2, 150)},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)},
    "wide": NINE | {"window": 3, "ahead": 2},
    "interface": {"mask": MASK, "layout": "interface"},
}


@pytest.mark.parametrize("changes", (QUESTIONS | OF_KERNELS).values(), ids=QUESTIONS | OF_KERNELS)
def test_the_correct_variant_is_the_oracle(changes):
    case = question(**changes)
    answer, expected = CORRECT.answer(case, Wiring()), answer_by_steps(case, Wiring())
    assert relative_error(answer, expected) < 1e-14
    if case.lengths is None:
        torch.testing.assert_close(answer.lse, expected.lse)
        torch.testing.assert_close(answer.weights, expected.weights)  # zeros in a row without a visible key


def test_an_item_alone_has_the_same_answer_and_gets_gradients():
    case = question(**OF_KERNELS["packed, causal"]).map_inputs(lambda x: x.requires_grad_())
    answer = expected_answer(case, Wiring())
    for b, (T, S) in enumerate(zip(*LENGTHS, strict=True)):
        q, k, v = (x[b : b + 1, :, :n] for x, n in ((case.q, T), (case.k, S), (case.v, S)))
        expected = expected_answer(Question("alone", q, k, v, causal=True), Wiring())
        torch.testing.assert_close(answer.output[b : b + 1, :, :T], expected.output)
        torch.testing.assert_close(answer.lse[b : b + 1, :, :T], expected.lse)
        assert answer.free[b, :, T:].all()
    answer.output.sum().backward()
    assert case.v.grad.abs().amax((1, 2, 3)).gt(0).all()


def test_the_correct_variant_is_the_oracle_with_weights_biases_and_a_cache():
    layers = {name: Affine(normal(20, 16), normal(16)) for name in ("query", "out")}
    layers["out"] = Affine(normal(16, 20), normal(20))
    layers |= {name: Affine(normal(20, 8), normal(8)) for name in ("key", "value")}
    wiring = Wiring(4, 2, **layers, splits=True, width=20, sinks=normal(4))
    x = normal(2, 7, 20)
    for start in (0, 4):
        case = Question("output", x[:, start:], x, x, causal=True)
        assert relative_error(CORRECT.answer(case, wiring), answer_by_steps(case, wiring)) < 1e-14


# They show only in scores that norms would make small.
WITHOUT_NORMS = ("weak-mask-value", "softmax-overflow", "renormalised-after-softmax", "softcap-after-mask")


@functools.cache
def asked(norms):
    """A wiring, and questions with their right answers."""
    torch.manual_seed(0)
    layers = [Affine(normal(20, 16)), Affine(normal(20, 8)), Affine(normal(20, 8)), Affine(normal(16, 20))]
    wiring = Wiring(
        *(4, 2, *layers),
        splits=True,
        width=20,
        rotate=Rotation(torch.tensor([1.0, 0.1], dtype=torch.float64)),
        query_norm=(lambda q: 0.5 * F.normalize(q, dim=-1)) if norms else None,
        key_norm=(lambda k: F.normalize(k, dim=-1) * torch.linspace(0.5, 2.0, k.shape[-1], dtype=k.dtype))
        if norms
        else None,
        bias=lambda H, T, S: -0.3 * (torch.arange(S - T, S)[:, None] - torch.arange(S)).expand(H, T, S),
    )
    x = 90 * normal(2, 6, 20)
    questions = [
        replace(Question("output", scale * x, scale * x, scale * x), **changes).to(torch.float32)
        for changes in QUESTIONS.values()
        for scale in (1 / 90, 1)
    ]
    questions += [replace(case, q=case.q[:, 4:]) for case in questions[2:4]]
    return wiring, [(case, CORRECT.answer(case, wiring)) for case in questions]


def differs(variant, case, wiring, right):
    """Whether a variant answers otherwise."""
    try:
        answer = variant.answer(case, wiring)
    except (RuntimeError, ValueError):
        return False  # the roles' shapes do not fit where there are fewer key heads
    hidden = [torch.zeros(1, dtype=torch.bool) if a.free is None else a.free for a in (answer, right)]
    return bool((hidden[0] != hidden[1]).any()) or not relative_error(answer, right) < 1e-4


def can_show(change):
    """Whether an output can show it here; detached weights show in gradients, the others are planted."""
    fewer_heads = {"roles", "layers"} & change.keys() or change.get("split") == "fused view"
    return not ("detach" in change or fewer_heads or change.get("block", 0) >= 6)  # all keys in one block


def test_every_mistake_changes_some_answer():
    for mistake in CATALOGUE.values():
        wiring, questions = asked(mistake.name not in WITHOUT_NORMS)
        for change in mistake.changes if mistake not in THEMES["kernels"] else ():
            if can_show(change):
                variant = replace(CORRECT, **change)
                assert any(differs(variant, case, wiring, right) for case, right in questions), change


def test_every_mistake_of_kernels_changes_some_answer():
    cases = [question(**changes) for changes in OF_KERNELS.values()]
    right = [(case, expected_answer(case, Wiring())) for case in cases]
    for mistake in THEMES["kernels"]:
        for change in mistake.changes:
            variant = replace(CORRECT, **change)
            assert any(
                relative_error(variant.answer(case, Wiring()), answer) > 1e-3
                for case, answer in right
                if not mistake.layouts or case.layout in mistake.layouts
            ), (mistake.name, change)
