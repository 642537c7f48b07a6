"""Errors as ratios to PyTorch's own at the same dtype: float32, half precision, many keys, strides."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import torch

from regard.checker.interpretation.intent import TOLERANCE, Intent
from regard.checker.interpreter.triton_interpreter import has_wrong_bfloat16
from regard.checker.oracle.oracle import Oracle, describe_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Answer
from regard.checker.probes.output_comparison.mask_forms import with_explicit_mask
from regard.checker.session import CheckSession

LIMIT = 10.0  # times PyTorch's own error at the same dtype
MANY_KEYS = 1024
WRONG_BFLOAT16 = "Triton's interpreter computes it wrongly"
FLOAT32 = torch.float32


def error_ratio(
    session: CheckSession, question: Question, oracle: Oracle, dtype: torch.dtype
) -> tuple[float, float] | str:
    """Return the subject's error and its ratio to that of the oracle's own yardstick.

    Text instead says why there is none: the error that the subject raised, or that of the reference.
    """
    reply = session.compared.run(question.to(dtype))
    if reply.answer is None:
        return reply.error_line
    measured = oracle.measure(question, dtype)
    if isinstance(measured, str):
        return measured
    error = relative_error(reply.answer, measured[0])
    return error, error / measured[1]


def _sizes(session: CheckSession) -> list[Question]:
    """Return questions of several sizes."""
    plain, module = session.cases.plain, session.module is not None
    questions = [
        plain(B=1, T=1),
        plain(B=1, T=2, H=1, D=8),
        plain(B=3, T=5, H=2, D=6),
        plain(B=2, T=16, H=3, D=32),
    ]
    questions += (
        [plain(B=1, T=12, seed=20)] if module else [plain(B=1, T=33, H=2, D=64), plain(B=2, T=40, H=1, D=16)]
    )
    if session.compared is not session.subject:  # some lengths are computed by other operations
        questions = [q for q in questions if session.compared.run(q.to(FLOAT32)).answer is not None]
    return questions


def check_precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the float32 error at several sizes."""
    worst, error = 0.0, 0.0
    for question in _sizes(session):
        measured = error_ratio(session, question, oracle, FLOAT32)
        if isinstance(measured, str) and session.reference is not None:
            session.add_skip("float32 error", f"it does not run in float32: {measured}")
            return
        if isinstance(measured, str):
            session.add_failure("float32 error", f"{question.shapes()} raised {measured}")
            return
        # NaN is not larger than the worst so far, and must not be skipped.
        if measured[1] > worst or measured[0] != measured[0]:
            error, worst = measured
        if not worst <= LIMIT:
            detail = f"{error:.1e}, {worst:.0f}× {oracle.yardstick}, on {question.shapes()}"
            record_imprecision(session, "float32 error", detail, error, worst / LIMIT)
            return
    session.add_pass("float32 error", f"{error:.1e} at most, {worst:.1f}× {oracle.yardstick}")


def record_imprecision(session: CheckSession, name: str, detail: str, error: float, distance: float) -> None:
    """Record an error that is too large, as lost precision if it is small enough for that."""
    # Bfloat16 has steps of 8e-3: what is off by more than a few of them was not just rounded.
    if 1e-5 < error < 3e-2:
        evidence = f"The output is right only to {error:.0e}, {detail.partition(', ')[2]}."
        session.add_mistake(name, detail, "precision-lost", evidence, error, distance=distance)
    else:
        session.add_failure(name, detail)


def check_sums_of_many_keys(session: CheckSession, intent: Intent) -> None:
    """Check the bfloat16 error on many keys of a function with a loop, which may add them up in bfloat16.

    Such a sum stops growing at 256 times its summands. PyTorch's own sums are taken in float32.
    """
    loops = re.search(r"^\s*(for|while)\b", session.source, re.M)
    if session.module is not None or not loops or not session.has_passed("bfloat16"):
        return
    # A loop over 1024 queries is slow, and 24 of them see as many keys where other lengths are right.
    T = 24 if not intent.causal and session.has_passed("cross-attention") else MANY_KEYS
    question = session.cases.plain("bfloat16, many keys", B=1, H=1, T=T, S=MANY_KEYS, D=16, seed=24)
    plainly = session.compared.run(question.to(session.dtype)).answer
    if plainly is None or not intent.error(question, plainly) < TOLERANCE:
        return  # it does not take so many, or is another attention there: `long_text` judges that
    reply = session.compared.run(question.to(torch.bfloat16))
    if reply.answer is None:
        return
    exact, _ = intent.measure(question, torch.bfloat16)
    plain = CORRECT.answer(replace(intent.apply(question).to(torch.bfloat16), layout=""), intent.wiring)
    # The first rows of causal attention see few keys, and their outputs are the largest.
    error, own = (relative_error(_last_rows(x), _last_rows(exact)) for x in (reply.answer, plain))
    ratio = error / max(own, torch.finfo(torch.bfloat16).eps / 2)
    if ratio <= LIMIT:
        session.add_pass(question.name, f"{MANY_KEYS} of them, {ratio:.1f}× PyTorch's own")
        return
    detail = f"{error:.1e} on {MANY_KEYS} keys, {ratio:.0f}× PyTorch's own"
    evidence = f"The output is right only to {error:.0e} on {MANY_KEYS} keys in bfloat16."
    session.add_mistake(question.name, detail, "precision-lost", evidence, error, distance=ratio / LIMIT)


def _last_rows(answer: Answer) -> Answer:
    return Answer(answer.output.detach()[..., -MANY_KEYS // 4 :, :])


def check_half_precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the errors in float16 and bfloat16, if the code runs in them."""
    question = session.with_causal_flag(session.cases.plain(B=2, T=9, seed=22))
    for dtype in (torch.bfloat16, torch.float16):
        short = str(dtype).removeprefix("torch.")
        name = short if session.reference is None else f"{short} error"
        if dtype == torch.bfloat16 and has_wrong_bfloat16():
            session.add_skip(name, WRONG_BFLOAT16)
            continue
        measured = error_ratio(session, question, oracle, dtype)
        masked = None
        if "mask" in session.arguments and session.reference is None:
            tokens_only = session.compared.mask_form.rank == 1  # a mask (B, S)
            masked = session.cases.padded(seed=23) if tokens_only else session.cases.masked(seed=23)
            masked = with_explicit_mask(session, masked)
        error_line = measured if isinstance(measured, str) else None
        if error_line is None and masked is not None:
            error_line = next(
                (t for t in [error_ratio(session, masked, oracle, dtype)] if isinstance(t, str)), None
            )
        # PyTorch's masked_fill says that the value “cannot be converted … without overflow”.
        if error_line is not None and "overflow" in error_line:
            session.add_mistake(
                name,
                error_line,
                "finite-mask-value",
                f"In {short} it raises “{error_line.partition(': ')[2]}”: the mask's value does not fit.",
                distance=math.inf,
            )
        elif error_line is not None:
            session.add_skip(name, f"it does not run in {short}: {error_line}")
        elif not isinstance(measured, str) and not measured[1] <= LIMIT:
            detail = f"{measured[0]:.1e}, {measured[1]:.0f}× {oracle.yardstick}"
            record_imprecision(session, name, detail, measured[0], measured[1] / LIMIT)
        elif not isinstance(measured, str):
            session.add_pass(name, f"{measured[0]:.1e}, {measured[1]:.1f}× {oracle.yardstick}")


def check_strides(session: CheckSession) -> None:
    """Check that inputs that are not contiguous in memory give the same output."""
    question = session.cases.plain("non-contiguous inputs", seed=24).to(session.dtype)
    strided = question.map_inputs(lambda x: x.transpose(-2, -1).contiguous().transpose(-2, -1))
    plain, reply = session.subject.run(question), session.subject.run(strided)
    # PyTorch says “view size is not compatible with input tensor's size and stride”.
    if reply.answer is None and "view" in reply.error_line:
        evidence = f"Inputs that are not contiguous raise {reply.error_line[:120]}."
        session.add_mistake(
            "non-contiguous inputs", "they are refused", "view-of-strided", evidence, distance=math.inf
        )
    elif reply.answer is None or plain.answer is None:
        session.add_skip("non-contiguous inputs", f"they are refused: {reply.error_line}")
    elif (error := relative_error(reply.answer, plain.answer)) < session.tolerance:
        session.add_pass("non-contiguous inputs")
    else:
        detail = f"{describe_difference(error)}, though right on contiguous ones"
        session.add_failure("non-contiguous inputs", detail)
