"""The weights and the lse that a subject returns beside its output."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from regard.checker.interpretation.intent import TOLERANCE
from regard.checker.oracle.oracle import Oracle, describe_agreement, describe_difference, relative_difference
from regard.checker.session import CheckSession
from regard.checker.subject.construction.source import returned_names

# Kernels that compute with exp2 may return this base on purpose; then they say so.
_SAYS_BASE_2 = re.compile(r"base[ _-]?(2|two)|log_?2|exp_?2", re.I)


def check_weights_and_lse(session: CheckSession, oracle: Oracle) -> None:
    """Check the weights and the log-sum-exp, if the code returns them."""
    question = session.with_causal_flag(session.cases.plain("weights", seed=25))
    reply = session.compared.run(question.to(session.dtype))
    if reply.answer is None:
        return
    expected = oracle.answer(question)
    if expected is None:
        return
    if reply.answer.weights is not None and expected.weights is not None:
        judge_weights(session, reply.answer.weights.detach().double(), expected.weights.detach().double())
        _weights_under_masks(session, oracle)
    if reply.answer.lse is not None and expected.lse is not None:
        judge_lse(session, reply.answer.lse.detach().double(), expected.lse.detach().double())


def _weights_under_masks(session: CheckSession, oracle: Oracle) -> None:
    """Check that the weights that are returned with a mask are those that give the output."""
    if not session.has_passed("weights"):
        return
    for question in session.right_questions:
        if question.mask is None and question.padding is None:
            continue
        answer = session.compared.run(question.to(session.dtype)).answer
        expected = oracle.answer(question)
        if answer is None or answer.weights is None or expected is None or expected.weights is None:
            continue
        got = answer.weights.double()
        wanted = _over_heads(got, expected.weights.double())
        seen = wanted.sum(-1, keepdim=True) > 0.5  # rows without a visible key may hold anything
        error = relative_difference(got.where(seen, wanted), wanted)
        if not error < session.tolerance:
            detail = (
                f"not those that give the output with a {question.name}: one {describe_difference(error)}"
            )
            session.add_failure("weights", detail)
            return


def judge_weights(session: CheckSession, got: Tensor, expected: Tensor) -> None:
    """Compare returned weights (B, H, T, S), or their mean over the heads, with the expected ones."""
    error = relative_difference(got, _over_heads(got, expected))
    sums = float((got.sum(-1) - 1).abs().max())
    if error < session.tolerance:
        session.add_pass("weights", "they sum to 1 and give the output")
    elif sums > 1e-4 and not _returns_weights(session):
        session.add_skip(
            "weights",
            "its second result is (…, T, S), but its rows do not sum to 1 and nothing calls it weights",
        )
    elif sums > 1e-4:
        session.add_failure(
            "weights", f"the rows of the returned weights do not sum to 1: a sum is off by {sums:.1g}"
        )
    else:
        session.add_failure("weights", f"not those that give the output: one {describe_difference(error)}")


def _over_heads(got: Tensor, expected: Tensor) -> Tensor:
    """Return the expected weights (B, H, T, S), or their mean over the heads if only that was returned."""
    return expected if got.shape[1] == expected.shape[1] else expected.mean(1, keepdim=True)


# nanoGPT calls them `att`, and Karpathy's lecture `wei`.
_WEIGHTS = re.compile(r"weight|attn|attention|prob|alpha|^(a|p|w|att|wei|maps?)$", re.I)


def _returns_weights(session: CheckSession) -> bool:
    """Return whether the code says that it returns weights: by an argument, or by a name that it returns.

    A second result of the shape of weights may be anything else: T5Attention returns its position biases.
    """
    if "weights" in session.subject.arguments:
        return True
    return any(_WEIGHTS.search(name) for name in returned_names(session.source))


def judge_lse(session: CheckSession, got: Tensor, expected: Tensor) -> None:
    """Compare a returned log-sum-exp (B, H, T) with the expected one."""
    error, base_2 = (
        relative_difference(got, expected),
        relative_difference(got, expected / torch.tensor(2.0).double().log()),
    )
    natural = "the natural one" if session.reference is None else "your reference's"
    says_base_2 = _SAYS_BASE_2.search(f"{session.subject.name} {session.subject.target.__doc__}")
    if error < session.tolerance:
        session.add_pass("lse", "natural logarithm" if session.reference is None else f"to {error:.0e}")
    elif base_2 < session.tolerance and says_base_2 and session.reference is None:
        session.add_pass("lse", "base 2, as its name or docstring says")
    elif base_2 < session.tolerance:
        session.add_mistake(
            "lse",
            describe_difference(error),
            "lse-base-2",
            f"The returned lse equals {natural} divided by ln 2, {describe_agreement(base_2)}.",
            base_2,
            distance=error / TOLERANCE,
        )
    else:
        session.add_failure("lse", describe_difference(error))
