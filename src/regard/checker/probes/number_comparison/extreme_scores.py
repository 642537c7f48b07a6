"""Scores so large that a careless softmax overflows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from regard.checker.catalogue import get_mistake
from regard.checker.interpretation.intent import Intent
from regard.checker.oracle.oracle import Oracle, describe_agreement, describe_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.number_comparison.precision import FLOAT32, LIMIT, error_ratio
from regard.checker.session import CheckSession

# A score in the hundreds is rounded to 1e-5 in float32, and so are weights computed as exp(score − lse).
ROUNDED_SCORES = 1e-4


def check_extreme_scores(session: CheckSession, oracle: Oracle) -> None:
    """Check scores in the hundreds: softmax must neither overflow nor lose the visible keys."""
    size, name = extreme_size(session), "extreme scores" if session.reference is None else "extreme inputs"
    questions = [session.cases.plain(name, seed=seed, size=size) for seed in (30, 31)]
    if session.module is None and session.subject.inputs == "qkv":
        # All scores of a row are far below 0: a running maximum must not begin there.
        opposite = torch.full(questions[0].k.shape[-1:], size, dtype=torch.float64)
        questions.append(replace(questions[0], q=questions[0].q + opposite, k=questions[0].k - opposite))
    for question in questions:
        measured = check_extreme(session, session.with_causal_flag(question), oracle)
        if isinstance(measured, str):
            record = session.add_failure if session.reference is None else session.add_skip
            record(name, measured)
        if measured is not None:
            return
    session.add_pass(name)


def extreme_size(session: CheckSession) -> float:
    """Return the size of inputs whose scores are in the hundreds."""
    if session.subject.arrays:
        return 40.0  # NumPy computes in float64, whose exponentials overflow at 709
    return 14.0 if session.module is None else 12.0


def _extreme_dtype(session: CheckSession) -> torch.dtype:
    return torch.float64 if session.subject.arrays else FLOAT32


def check_extreme(session: CheckSession, question: Question, oracle: Oracle) -> str | bool | None:
    """Run a question with extreme scores, and diagnose a wrong answer.

    Returns None if the answer is right, True if it is wrong and recorded, or the error if there was one.
    """
    measured = error_ratio(session, question, oracle, _extreme_dtype(session))
    if isinstance(measured, str):
        return measured
    error, ratio = measured
    if ratio <= LIMIT or error <= ROUNDED_SCORES:
        return None
    _diagnose_extreme_scores(session, question, oracle, error, ratio / LIMIT)
    return True


def _extreme_changes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mistakes that extreme scores show; a value that hides too little is filled in, or added."""
    for name in ("softmax-overflow", "renormalised-after-softmax", "weak-mask-value"):
        yield from ((name, change) for change in get_mistake(name).changes)
    # Scores in the hundreds reach values down to −1000; lower ones, such as −1e9, hide every key.
    for value, masking in itertools.product(range(-1, -1001, -1), ("fill", "add fill")):
        yield "weak-mask-value", {"fill": float(value), "masking": masking}


def _diagnose_extreme_scores(
    session: CheckSession, question: Question, oracle: Oracle, error: float, distance: float
) -> None:
    dtype = _extreme_dtype(session)
    reply = session.compared.run(question.to(dtype))
    assert reply.answer is not None
    broken = not bool(reply.answer.output.isfinite().all())
    detail = "NaN or inf where scores are in the hundreds" if broken else describe_difference(error)
    if not isinstance(oracle, Intent):  # the mistakes of a reference's attention are not known
        session.add_failure(question.name, detail)
        return
    for name, change in _extreme_changes():
        with torch.no_grad():
            answer = replace(CORRECT, **change).answer(oracle.apply(question).to(dtype), oracle.wiring)
        remaining = relative_error(reply.answer, answer)
        if remaining < 1e-2:
            evidence = f"With scores in the hundreds your output equals attention {get_mistake(name).what}"
            evidence += f", NaN for NaN, {describe_agreement(remaining)}."
            session.add_mistake(question.name, detail, name, evidence, remaining, distance=distance)
            return
    if broken:
        evidence = f"The output holds {detail}."
        session.add_mistake(question.name, detail, "softmax-overflow", evidence, distance=distance)
    else:
        session.add_failure(question.name, detail)
