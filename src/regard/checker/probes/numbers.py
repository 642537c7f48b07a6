"""Numerical checks: errors as ratios to PyTorch's own, gradients, extreme scores, strides, weights and lse.

All of them need an output that is right; they judge how accurate it is, in float32, in half precision, on
many keys, and where scores are so large that a careless softmax overflows.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.catalogue import get_mistake
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Oracle,
    describe_agreement,
    describe_difference,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.gradients import probe_gradients
from regard.checker.session import CheckSession
from regard.checker.subject.kernel_recognition import is_interpreting
from regard.checker.subject.source import returned_names

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
    questions = [session.with_causal_flag(session.cases.plain(B=2, T=9, seed=22))]
    if "mask" in session.arguments and session.reference is None:
        tokens_only = session.compared.mask_form.rank == 1  # a mask (B, S)
        masked = session.cases.padded(seed=23) if tokens_only else session.cases.masked(seed=23)
        questions.append(session.with_explicit_mask(masked))
    for dtype in (torch.bfloat16, torch.float16):
        short = str(dtype).removeprefix("torch.")
        name = short if session.reference is None else f"{short} error"
        # Triton 3.6 stores bfloat16 as uint16, which NumPy has, and multiplies those.
        if dtype == torch.bfloat16 and is_interpreting():
            session.add_skip(name, WRONG_BFLOAT16)
            continue
        # The second only shows whether the code runs with a mask: how it rounds does not depend on that.
        measured = [error_ratio(session, question, oracle, dtype) for question in questions]
        error_line = next((m for m in measured if isinstance(m, str)), "")
        # PyTorch's masked_fill says that the value “cannot be converted … without overflow”.
        if "overflow" in error_line:
            said = error_line.partition(": ")[2]
            evidence = f"In {short} it raises “{said}”: the mask's value does not fit."
            session.add_mistake(name, error_line, "finite-mask-value", evidence, distance=math.inf)
        elif error_line:
            session.add_skip(name, f"it does not run in {short}: {error_line}")
        elif not isinstance(measured[0], str):
            error, ratio = measured[0]
            if ratio <= LIMIT:
                session.add_pass(name, f"{error:.1e}, {ratio:.1f}× {oracle.yardstick}")
            else:
                detail = f"{error:.1e}, {ratio:.0f}× {oracle.yardstick}"
                record_imprecision(session, name, detail, error, ratio / LIMIT)


def check_strides(session: CheckSession) -> None:
    """Check that inputs that are not contiguous in memory give the same output."""
    question = session.cases.plain("non-contiguous inputs", seed=24).to(session.dtype)
    strided = question.map_inputs(lambda x: x.transpose(-2, -1).contiguous().transpose(-2, -1))
    plain, reply = session.subject.run(question), session.subject.run(strided)
    # PyTorch says “view size is not compatible with input tensor's size and stride”.
    if reply.answer is None and "view" in reply.error_line:
        error_line = reply.error_line[:120]
        session.find("view-of-strided", "non-contiguous inputs", distance=math.inf, error_line=error_line)
    elif reply.answer is None or plain.answer is None:
        session.add_skip("non-contiguous inputs", f"they are refused: {reply.error_line}")
    elif (error := relative_error(reply.answer, plain.answer)) < session.tolerance:
        session.add_pass("non-contiguous inputs")
    else:
        detail = f"{describe_difference(error)}, though right on contiguous ones"
        session.add_failure("non-contiguous inputs", detail)


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
    for question in session.right_questions.values():
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
        words: dict[str, Any] = {
            "difference": describe_difference(error),
            "agreement": describe_agreement(base_2),
        }
        session.find("lse-base-2", "lse", base_2, distance=error / TOLERANCE, natural=natural, **words)
    else:
        session.add_failure("lse", describe_difference(error))


def probe_numbers(session: CheckSession) -> None:
    """Make the numerical checks, if the output is right."""
    oracle = session.oracle
    if oracle is None:
        session.add_skip(
            "precision, gradients and extreme scores", "the output is not right, or was not compared"
        )
        return
    exact = session.reference is None or session.reference.is_exact
    if exact:
        check_precision(session, oracle)
    probe_gradients(session, oracle)
    if exact:
        check_half_precision(session, oracle)
        if isinstance(oracle, Intent):
            check_sums_of_many_keys(session, oracle)
        check_extreme_scores(session, oracle)
    check_strides(session)
    check_weights_and_lse(session, oracle)
