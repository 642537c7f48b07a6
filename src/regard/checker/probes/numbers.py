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
    describe_agreement,
    describe_difference,
    pytorch_answer,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.gradients import probe_gradients
from regard.checker.session import CheckSession, Oracle
from regard.checker.subject.call_tensors import copy_module
from regard.checker.subject.kernel_recognition import is_interpreting
from regard.checker.subject.source import returned_names

LIMIT = 10.0  # times PyTorch's own error at the same dtype
MANY_KEYS = 1024
HALF = (torch.bfloat16, torch.float16)
WRONG_BFLOAT16 = "Triton's interpreter computes it wrongly"


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


SMALL_AND_LARGE: list[dict[str, Any]] = [
    {"B": 1, "T": 1},
    {"B": 1, "T": 2, "H": 1, "D": 8},
    {"B": 3, "T": 5, "H": 2, "D": 6},
    {"B": 2, "T": 16, "H": 3, "D": 32},
]
OF_MODULES: list[dict[str, Any]] = [{"B": 1, "T": 12, "seed": 20}]
OF_FUNCTIONS: list[dict[str, Any]] = [{"B": 1, "T": 33, "H": 2, "D": 64}, {"B": 2, "T": 40, "H": 1, "D": 16}]


def check_precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the float32 error at several sizes."""
    worst, error = 0.0, 0.0
    for sizes in SMALL_AND_LARGE + (OF_FUNCTIONS if session.module is None else OF_MODULES):
        question = session.cases.plain(**sizes)
        measured = error_ratio(session, question, oracle, torch.float32)
        if isinstance(measured, str) and session.compared is not session.subject:
            continue  # some lengths are computed by other operations
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
            detail = f"{worst:.0f}× {oracle.yardstick}, on {question.shapes()}"
            record_imprecision(session, "float32 error", detail, error, worst / LIMIT)
            return
    session.add_pass("float32 error", f"{error:.1e} at most, {worst:.1f}× {oracle.yardstick}")


def record_imprecision(session: CheckSession, name: str, detail: str, error: float, distance: float) -> None:
    """Record an error that is too large, as lost precision if it is small enough for that."""
    # Bfloat16 has steps of 8e-3: what is off by more than a few of them was not just rounded.
    if 1e-5 < error < 3e-2:
        evidence = f"The output is right only to {error:.0e}, {detail}."
        session.add_mistake(
            name, f"{error:.1e}, {detail}", "precision-lost", evidence, error, distance=distance
        )
    else:
        session.add_failure(name, f"{error:.1e}, {detail}")


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
    error, ratio = late_error(question, reply.answer, intent, torch.bfloat16)
    if ratio <= LIMIT:
        session.add_pass(question.name, f"{MANY_KEYS} of them, {ratio:.1f}× PyTorch's own")
        return
    detail = f"{error:.1e} on {MANY_KEYS} keys, {ratio:.0f}× PyTorch's own"
    evidence = f"The output is right only to {error:.0e} on {MANY_KEYS} keys in bfloat16."
    session.add_mistake(question.name, detail, "precision-lost", evidence, error, distance=ratio / LIMIT)


def late_error(question: Question, answer: Answer, intent: Intent, dtype: torch.dtype) -> tuple[float, float]:
    """Return the error of the last quarter of the rows, and its ratio to PyTorch's own.

    The first rows of causal attention see few keys, and their outputs are the largest.
    """
    exact = intent.rounded_answer(question, dtype)
    rows = -max(1, question.q.shape[-2] // 4)
    got, own, wanted = (
        Answer(x.output.detach()[..., rows:, :])
        for x in (answer, pytorch_answer(question, intent, dtype), exact)
    )
    error = relative_error(got, wanted)
    return error, error / max(relative_error(own, wanted), torch.finfo(dtype).eps / 2)


def check_long_half_precision(session: CheckSession, own: CheckSession, question: Question) -> str:
    """Check the error in bfloat16 on a long text, where rounded positions and angles show.

    Of whole numbers, bfloat16 has those up to 256 only; float16 is taken where the code runs in that alone.
    `own` is the session, or its class built for longer texts, whose answer to the question is right. Returns
    the dtype if it is accurate, and "" if not.
    """
    intent, T = own.right_intent, question.q.shape[-2]
    assert intent is not None
    short = next((name for name in ("bfloat16", "float16") if session.has_passed(name)), "")
    dtype = getattr(torch, short, torch.float16)
    # With the weights of a new layer scores hardly differ, and neither do outputs at other positions.
    question = question.map_inputs(lambda x: 2 * x)
    answer = own.compared.run(question.to(dtype)).answer if short else None
    if answer is None:
        return ""
    error, ratio = late_error(question, answer, intent, dtype)
    if ratio <= LIMIT:
        return short
    name, detail = f"{short}, {question.name}", f"{error:.1e} on {T} tokens, {ratio:.0f}× {intent.yardstick}"
    evidence = f"The output is right only to {error:.0e} on {T} tokens in {short}."
    # `model.bfloat16()` rounds buffers, which half precision by autocast, or of the weights alone, does not.
    blamed = _is_imprecise_with_exact_buffers(own, question, intent, dtype)
    evidence += "" if blamed else " Its buffers are rounded with its weights: keep them in float32."
    distance = ratio / LIMIT
    session.add_mistake(
        name, detail, "precision-lost", evidence, error, distance=distance, warning=not blamed
    )
    return ""


def _is_imprecise_with_exact_buffers(
    session: CheckSession, question: Question, intent: Intent, dtype: torch.dtype
) -> bool:
    """Return whether code runs, and its error is too large, though its buffers are those of float32."""
    rounded, exact = session.subject.module_as(dtype), session.subject.module_as(torch.float32)
    if rounded is None or exact is None:
        return True
    module = copy_module(rounded)
    for path, part in exact.named_modules():
        module.get_submodule(path)._buffers.update(part._buffers)
    # Where float32 tables meet queries in bfloat16, PyTorch may raise an error about their dtypes.
    answer = session.compared.run(question.to(dtype), module=module).answer
    return answer is not None and late_error(question, answer, intent, dtype)[1] > LIMIT


def check_half_precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the errors in float16 and bfloat16, if the code runs in them."""
    questions = [session.with_causal_flag(session.cases.plain(B=2, T=9, seed=22))]
    if "mask" in session.arguments and session.reference is None:
        tokens_only = session.compared.mask_form.rank == 1  # a mask (B, S)
        masked = session.cases.padded(seed=23) if tokens_only else session.cases.masked(seed=23)
        questions.append(session.with_explicit_mask(masked))
    for dtype in HALF:
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
                record_imprecision(session, name, f"{ratio:.0f}× {oracle.yardstick}", error, ratio / LIMIT)


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
            session.add_check(name, "failed" if session.reference is None else "skipped", measured)
        if measured is not None:
            return
    session.add_pass(name)


def check_zero_token(session: CheckSession, oracle: Oracle) -> None:
    """Check a token of zeros, as that of `padding_idx`: its scores are 0, which hides no key."""
    name = "zero token"
    masked = [q for key, q in session.right_questions.items() if key in ("mask", "padding")]
    questions = [session.with_causal_flag(session.cases.plain(name, seed=33)), *masked]

    def with_zeros(x: Tensor) -> Tensor:
        return x.index_fill(-2, torch.tensor(x.shape[-2] // 2), 0.0)

    asked = [session.compare(question.map_inputs(with_zeros), oracle) for question in questions]
    wrong = [one for one in asked if one.answer is not None and not one.agrees]
    if wrong:
        session.add_failure(name, f"with a token of zeros, it {describe_difference(wrong[0].error)}")
    elif asked[0].answer is not None:
        session.add_pass(name)


def extreme_size(session: CheckSession) -> float:
    """Return the size of inputs whose scores are in the hundreds."""
    if session.subject.arrays:
        return 40.0  # NumPy computes in float64, whose exponentials overflow at 709
    return 14.0 if session.module is None else 12.0


def check_extreme(session: CheckSession, question: Question, oracle: Oracle) -> str | bool | None:
    """Run a question with extreme scores, and diagnose a wrong answer.

    Returns None if the answer is right, True if it is wrong and recorded, or the error if there was one.
    """
    dtype = torch.float64 if session.subject.arrays else torch.float32
    measured = error_ratio(session, question, oracle, dtype)
    if isinstance(measured, str):
        return measured
    error, ratio = measured
    if ratio <= LIMIT or error <= ROUNDED_SCORES:
        return None
    reply = session.compared.run(question.to(dtype))
    assert reply.answer is not None
    broken = not bool(reply.answer.output.isfinite().all())
    detail = "NaN or inf where scores are in the hundreds" if broken else describe_difference(error)
    if not isinstance(oracle, Intent):  # the mistakes of a reference's attention are not known
        session.add_failure(question.name, detail)
        return True
    for name, change in _extreme_changes():
        with torch.no_grad():
            answer = replace(CORRECT, **change).answer(oracle.apply(question).to(dtype), oracle.wiring)
        remaining = relative_error(reply.answer, answer)
        if remaining < 1e-2:
            evidence = f"With scores in the hundreds your output equals attention {get_mistake(name).what}"
            evidence += f", NaN for NaN, {describe_agreement(remaining)}."
            session.add_mistake(question.name, detail, name, evidence, remaining, distance=ratio / LIMIT)
            return True
    if broken:
        evidence = f"The output holds {detail}."
        session.add_mistake(question.name, detail, "softmax-overflow", evidence, distance=ratio / LIMIT)
    else:
        session.add_failure(question.name, detail)
    return True


def _extreme_changes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mistakes that extreme scores show; a value that hides too little is filled in, or added."""
    for name in ("softmax-overflow", "renormalised-after-softmax", "weak-mask-value"):
        yield from ((name, change) for change in get_mistake(name).changes)
    # Scores in the hundreds reach values down to −1000; lower ones, such as −1e9, hide every key.
    for value, masking in itertools.product(range(-1, -1001, -1), ("fill", "add fill")):
        yield "weak-mask-value", {"fill": float(value), "masking": masking}


# Kernels that compute with exp2 may return this base on purpose; then they say so.
_SAYS_BASE_2 = re.compile(r"base[ _-]?(2|two)|log_?2|exp_?2", re.I)


def check_weights_and_lse(session: CheckSession, oracle: Oracle) -> None:
    """Check the weights and the log-sum-exp, if the code returns them."""
    question = session.with_causal_flag(session.cases.plain("weights", seed=25))
    answer, expected = session.compared.run(question.to(session.dtype)).answer, oracle.answer(question)
    if answer is None or expected is None:
        return
    _judge_weights(session, question, oracle)
    for masked in session.right_questions.values():
        right = session.has_passed("weights") and not session.has_failed("weights")
        if right and (masked.mask is not None or masked.padding is not None):
            _judge_weights(session, masked, oracle, f" with a {masked.name}")
    if answer.lse is not None and expected.lse is not None:
        judge_lse(session, answer.lse.detach().double(), expected.lse.detach().double())


# nanoGPT calls them `att`, and Karpathy's lecture `wei`.
_WEIGHTS = re.compile(r"weight|attn|attention|prob|alpha|^(a|p|w|att|wei|maps?)$", re.I)


def _judge_weights(session: CheckSession, question: Question, oracle: Oracle, given: str = "") -> None:
    """Check returned weights (B, H, T, S), or their mean over the heads; `given` says with which mask."""
    answer, expected = session.compared.run(question.to(session.dtype)).answer, oracle.answer(question)
    if answer is None or answer.weights is None or expected is None or expected.weights is None:
        return
    got, wanted = answer.weights.detach().double(), expected.weights.detach().double()
    wanted = wanted if got.shape[1] == wanted.shape[1] else wanted.mean(1, keepdim=True)
    if given:  # rows without a visible key may hold anything
        got = got.where(wanted.sum(-1, keepdim=True) > 0.5, wanted)
    error, sums = relative_difference(got, wanted), float((got.sum(-1) - 1).abs().max())
    # A second result of the shape of weights may be anything else: T5Attention returns its position biases.
    says = [*(["weights"] if "weights" in session.subject.arguments else []), *returned_names(session.source)]
    if error < session.tolerance:
        if not given:
            session.add_pass("weights", "they sum to 1 and give the output")
    elif sums <= 1e-4 or given:
        detail = f"not those that give the output{given}: one {describe_difference(error)}"
        session.add_failure("weights", detail)
    elif any(_WEIGHTS.search(name) for name in says):
        detail = f"the rows of the returned weights do not sum to 1: a sum is off by {sums:.1g}"
        session.add_failure("weights", detail)
    else:
        reason = "its second result is (…, T, S), but its rows do not sum to 1 and nothing calls it weights"
        session.add_skip("weights", reason)


def judge_lse(session: CheckSession, got: Tensor, expected: Tensor) -> None:
    """Compare a returned log-sum-exp (B, H, T) with the expected one."""
    log_2 = torch.tensor(2.0).double().log()
    error, base_2 = (relative_difference(got, lse) for lse in (expected, expected / log_2))
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
    # Only a reference in float64 can say how large errors of other precisions are.
    exact = session.reference is None or session.reference.session.dtype == torch.float64
    if exact:
        check_precision(session, oracle)
    probe_gradients(session, oracle)
    if exact:
        check_half_precision(session, oracle)
        if isinstance(oracle, Intent):
            check_sums_of_many_keys(session, oracle)
        check_extreme_scores(session, oracle)
    check_zero_token(session, oracle)
    check_strides(session)
    check_weights_and_lse(session, oracle)
