"""What earlier calls change: nothing, in right code. Questions are asked alone, and one after another.

Code may keep a table, a mask or a buffer of one call for the next, as long as it fits the next call's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.checker.oracle.oracle import TOLERANCE, describe_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession
from regard.checker.subject.source import has_cache
from regard.checker.subject.subject import Reply

_ORDER = (0, 0, 1, 0, 2, 1, 3, 0)  # which question comes after which, in calls of one and the same code


def probe_state(session: CheckSession) -> bool:
    """Check that a call gives the same result whatever was called before; returns whether it does not.

    Other probes would then compare numbers that depend on each other. Code with a cache is left to
    `probe_cache`.
    """
    subject = session.subject
    if not _can_begin_anew(session):
        return False
    # A length that it refuses is refused in every order, which is no difference.
    cases = replace(session.cases, fixed_length=None)
    flag = True if "causal" in subject.arguments and session.options.get("causal") is not False else None
    questions = [
        replace(plain, flag=flag or plain.flag)
        for B, T, seed in ((2, 7, 0), (3, 4, 97), (2, 11, 98), (2, 7, 99))
        for plain in [cases.plain("calls", B=B, T=T, seed=seed)]
    ]
    is_kept = _is_state_kept(session, questions, _ORDER)
    if is_kept:
        session.add_skip("output", "it depends on earlier calls")
    elif is_kept is not None:
        session.add_pass("calls", "earlier ones change nothing")
    return is_kept is True


def probe_masked_calls(session: CheckSession) -> None:
    """Check that the mask of a call is not kept for the next one on inputs of the same shape."""
    right, questions = session.right_questions, list[Question]()
    if (masked := right.get("mask")) is not None:
        questions += [masked, replace(masked, mask=session.cases.masked(seed=95).mask)]
    if (padded := right.get("padding")) is not None and padded.padding is not None:
        questions += [padded, replace(padded, padding=padded.padding.flip(0))]
    if not questions or not _can_begin_anew(session):
        return
    questions = [replace(question, name="masked calls") for question in questions]
    if _is_state_kept(session, questions, range(len(questions))) is False:
        session.add_pass("masked calls", "earlier masks change nothing")


def _can_begin_anew(session: CheckSession) -> bool:
    """Return whether the code keeps no cache, and can be brought back to where nothing was called."""
    subject = session.subject
    if {"cache", "use_cache", "start"} & subject.arguments.keys():
        return False
    if subject.module is not None:
        return not has_cache(subject) and session.options.get("cached") is None
    return session.options.get("cached") is None and subject.device == "cpu"


def _is_state_kept(session: CheckSession, questions: list[Question], order: Sequence[int]) -> bool | None:
    """Return whether questions in an order get other answers than alone, and record it if they do.

    None if that cannot be said: the code is random, or keeps its state where it cannot be put back.
    """
    alone = [_run(session, question, _fresh_module(session)) for question in questions]
    again = _run(session, questions[0], _fresh_module(session))
    if _difference(again, alone[0]):
        return None
    module, previous = _fresh_module(session), questions[0]
    for index in order:
        question, expected = questions[index], alone[index]
        reply = _run(session, question, module)
        if expected.answer is not None and (error := _difference(reply, expected)):
            what = describe_difference(error)
            if reply.answer is None:
                what = f"raises {reply.error_line[:120]}"
            words: dict[str, Any] = {"what": what, "previous": previous.shapes(), "shapes": question.shapes()}
            session.find("state-between-calls", question.name, distance=error / TOLERANCE, **words)
            return True
        previous = question
    return False


def _fresh_module(session: CheckSession) -> nn.Module | None:
    """Return a copy of the module on which nothing was called yet; bring a function back to that."""
    if session.module is not None:
        return session.fresh_module()
    if session.subject.state is not None:
        session.subject.state.restore()
    return None


def _run(session: CheckSession, question: Question, module: nn.Module | None) -> Reply:
    # With one seed code that draws random numbers can be compared, too.
    torch.manual_seed(0)
    with torch.no_grad():
        return session.subject.run(question.to(session.dtype), module=module)


def _difference(reply: Reply, expected: Reply) -> float:
    """Return how far two replies differ: 0.0 if they agree, inf if only one of them is an error."""
    if reply.answer is None or expected.answer is None:
        return 0.0 if reply.answer is expected.answer else math.inf
    error = relative_error(reply.answer, expected.answer)
    return 0.0 if error < TOLERANCE else error
