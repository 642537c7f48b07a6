"""What a call does beside its result: it may overwrite its inputs, and change the results of later calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from regard.checker.interpretation.intent import TOLERANCE
from regard.checker.oracle.oracle import describe_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.probes.output_comparison.mask_forms import with_explicit_mask
from regard.checker.session import CheckSession
from regard.checker.subject.call_tensors import copy_module, in_dtype
from regard.checker.subject.continuation import has_cache
from regard.checker.subject.reply import Reply

_ORDER = (0, 0, 1, 0, 2, 1, 3, 0)  # which question comes after which, in calls of one and the same code


def probe_state(session: CheckSession) -> bool:
    """Check that a call gives the same result whatever was called before; returns whether it does not.

    Other probes would then compare numbers that depend on each other. Code with a cache is left to
    `probe_cache`.
    """
    subject = session.subject
    if has_cache(subject) or {"cache", "use_cache", "start"} & subject.arguments.keys():
        return False
    if session.options.get("cached") is not None or (subject.module is None and subject.device != "cpu"):
        return False
    questions = list(_questions(session))
    alone = [_run(session, question, _fresh_module(session)) for question in questions]
    again = _run(session, questions[0], _fresh_module(session))
    if _difference(again, alone[0]):
        return False  # it is random, or keeps its state where it cannot be put back
    module, previous = _fresh_module(session), questions[0]
    for index in _ORDER:
        question, expected = questions[index], alone[index]
        reply = _run(session, question, module)
        if expected.answer is not None and (error := _difference(reply, expected)):
            what = describe_difference(error)
            if reply.answer is None:
                what = f"raises {reply.error_line[:120]}"
            evidence = (
                f"After a call on {previous.shapes()}, one on {question.shapes()} {what}: not so alone."
            )
            distance = error / TOLERANCE
            session.add_mistake("calls", what, "state-between-calls", evidence, distance=distance)
            session.add_skip("output", "it depends on earlier calls")
            return True
        previous = question
    session.add_pass("calls", "earlier ones change nothing")
    return False


def _questions(session: CheckSession) -> Iterator[Question]:
    """Yield questions of several lengths and batch sizes, and at last one of the first one's shape."""
    # A length that it refuses is refused in every order, which is no difference.
    cases = replace(session.cases, fixed_length=None)
    flag = "causal" in session.subject.arguments and session.options.get("causal") is not False
    for B, T, seed in ((2, 7, 0), (3, 4, 97), (2, 11, 98), (2, 7, 99)):
        question = cases.plain("calls", B=B, T=T, seed=seed)
        yield replace(question, flag=True) if flag else question


def _fresh_module(session: CheckSession) -> nn.Module | None:
    """Return a copy of the module on which nothing was called yet; bring a function back to that."""
    if session.module is not None:
        return in_dtype(copy_module(session.module), session.dtype).eval()
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


def probe_inputs_kept(session: CheckSession) -> None:
    """Check that a call leaves the tensors that it is given as they were."""
    arguments, cases = session.subject.arguments, session.cases
    questions = [cases.plain("inputs are kept", seed=94)]
    if "causal" in arguments and session.options.get("causal") is not False:
        questions.append(replace(questions[0], flag=True))
    if "mask" in arguments and session.subject.mask_form.rank != 1:
        questions.append(with_explicit_mask(session, cases.masked("inputs are kept", seed=94)))
    if "padding" in arguments or ("mask" in arguments and session.subject.layout not in ("TD", "TC")):
        questions.append(with_explicit_mask(session, cases.padded("inputs are kept", seed=94)))
    replies = [session.subject.run(question.to(session.dtype), watched=True) for question in questions]
    overwritten = next((reply.overwritten for reply in replies if reply.overwritten), ())
    if overwritten:
        names = " and ".join(f"`{name}`" for name in overwritten)
        have, were = ("have", "were") if len(overwritten) > 1 else ("has", "was")
        evidence = f"After a call {names} {have} other numbers than {were} passed."
        session.add_mistake("inputs are kept", f"{names} {were} overwritten", "input-overwritten", evidence)
    elif any(reply.answer is not None for reply in replies):
        session.add_pass("inputs are kept")
