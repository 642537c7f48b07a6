"""The smallest input on which an output is wrong, in words."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checker.interpretation.intent import Observation
from regard.checker.interpretation.understand import observe
from regard.checker.oracle.question import Question
from regard.checker.probes.behaviour import with_options
from regard.checker.session import CheckSession

_SMALL = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3))  # batch sizes and lengths, the smallest first
COMPARE = "pass your own slow version to compare with: oracle=my_reference, or --oracle FILE.py:Name"


def smallest_failure(session: CheckSession, failing: list[Observation]) -> str:
    """Describe the smallest question that fails, and its first wrong number."""
    first = failing[0].question
    plain = [session.cases.plain(first.name, B=B, T=T, H=1, seed=2) for B, T in _SMALL]
    small = observe(session.compared, [with_options(question, first) for question in plain], session.dtype)
    for observation in [*small, *failing]:
        expected = session.presumed_oracle.answer(observation.question)
        if expected is not None and not session.error(observation) < session.tolerance:
            return describe_failure(observation.question, observation.answer.output, expected.output)
    return ""


def describe_failure(question: Question, output: Tensor, expected: Tensor) -> str:
    """Return the sizes of a question and the first number that is not the expected one, in two lines."""
    got, expected = output.detach().double(), expected.detach().double()
    if got.shape != expected.shape:
        shapes = f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
        return f"  {question.name}, {question.shapes()}\n  the output has shape {shapes}"
    off = ~torch.isclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    index = tuple(int(i) for i in off.nonzero()[0]) if bool(off.any()) else (0,) * got.ndim
    return (
        f"  {question.name}, {question.shapes()}\n"
        f"  output{list(index)}  expected {expected[index]:.6g}  got {got[index]:.6g}"
        f"  ({int(off.sum())} of {off.numel()} numbers differ)"
    )
