"""Numerical checks: errors as ratios to PyTorch's own, gradients, extreme scores, strides, weights and lse.

All of them need an output that is right; they judge how accurate it is.
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
from regard.checker.intent import TOLERANCE, Intent
from regard.checker.intent import pytorch_error as pytorch_error
from regard.checker.oracle.oracle import (
    Oracle,
    describe_agreement,
    describe_difference,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Answer
from regard.checker.probes.backward import leaf_gradients, run_backward
from regard.checker.probes.derivatives import probe_derivatives
from regard.checker.probes.output import with_explicit_mask
from regard.checker.session import CheckSession
from regard.checker.subject.source import returned_names
from regard.checker.subject.subject import Subject
from regard.checker.triton_interpreter import has_wrong_bfloat16

LIMIT = 10.0  # times PyTorch's own error at the same dtype
GRADIENT_TOLERANCE = 1e-4  # relative
# A score in the hundreds is rounded to 1e-5 in float32, and so are weights computed as exp(score − lse).
ROUNDED_SCORES = 1e-4
MANY_KEYS = 1024
WRONG_BFLOAT16 = "Triton's interpreter computes it wrongly"
NO_GRADIENT = "it gets no gradient, though the output depends on it"
_FLOAT32 = torch.float32
_SAYS_BASE_2 = re.compile(r"base[ _-]?(2|two)|log_?2|exp_?2", re.I)


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
        _precision(session, oracle)
    probe_gradients(session, oracle)
    if exact:
        _half_precision(session, oracle)
        if isinstance(oracle, Intent):
            _sums_of_many_keys(session, oracle)
        _extreme_scores(session, oracle)
    _strides(session)
    _weights_and_lse(session, oracle)


def _ratio(
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
        questions = [q for q in questions if session.compared.run(q.to(_FLOAT32)).answer is not None]
    return questions


def _precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the float32 error at several sizes."""
    worst, error = 0.0, 0.0
    for question in _sizes(session):
        measured = _ratio(session, question, oracle, _FLOAT32)
        if isinstance(measured, str) and session.reference is not None:
            session.add_skip("float32 error", f"it does not run in float32: {measured}")
            return
        if isinstance(measured, str):
            session.add_failure("float32 error", f"{question.shapes()} raised {measured}")
            return
        if measured[1] > worst or measured[0] != measured[0]:
            error, worst = measured
        if not worst <= LIMIT:
            detail = f"{error:.1e}, {worst:.0f}× {oracle.yardstick}, on {question.shapes()}"
            record_imprecision(session, "float32 error", detail, error, worst / LIMIT)
            return
    session.add_pass("float32 error", f"{error:.1e} at most, {worst:.1f}× {oracle.yardstick}")


def record_imprecision(session: CheckSession, name: str, detail: str, error: float, distance: float) -> None:
    """Record an error that is too large, as lost precision if it is small enough for that."""
    if 1e-5 < error < 3e-2:
        evidence = f"The output is right only to {error:.0e}, {detail.partition(', ')[2]}."
        session.add_mistake(name, detail, "precision-lost", evidence, error, distance=distance)
    else:
        session.add_failure(name, detail)


def probe_gradients(session: CheckSession, oracle: Oracle) -> None:
    """Compare the gradients of the inputs, and of parameters that a reference has too, with the oracle's."""
    if not session.options.get("gradients", True):
        session.add_skip("gradients", "as you asked")
        return
    question = session.with_causal_flag(session.cases.plain("gradients", seed=21))
    is_part = session.compared is not session.subject  # the oracle knows only a part of the module
    expected = {} if is_part else _expected_gradients(session, question, oracle)
    if isinstance(expected, str):
        session.add_skip("gradients", f"your reference has none: {expected}")
        return
    missing, failure = run_backward(session, question)
    if failure:
        session.add_failure("gradients", f"the output is right, but its backward pass raises {failure}")
        return
    if is_part:
        probe_derivatives(session)
        return
    reference = session.reference
    if missing and reference is None:  # a reference with gradients shows that there should be some
        session.add_skip("gradients", f"it has no backward pass: {missing}")
        return
    shared = [] if reference is None else reference.match.pairs
    got = _gradients(session, question, {name: name for name, _ in shared})
    untracked = re.search(r"@(torch\.)?(no_grad|inference_mode)", session.source)
    if isinstance(got, str) and untracked and reference is None:
        session.add_skip("gradients", "it switches them off itself: @torch.no_grad")
        return
    if isinstance(got, str):
        session.add_mistake(
            "gradients",
            got,
            "weights-detached",
            f"The output has no gradient at all: {got}.",
            distance=math.inf,
        )
        return
    errors = {name: relative_difference(got[name], expected[name]) for name in got if name in expected}
    worst = max(errors, key=lambda name: errors[name])
    error = errors[worst]
    if error < _gradient_tolerance(session):
        session.add_pass("gradients", f"to {error:.0e}")
        _gradients_of_options(session, oracle)
        _gradient_of_strided(session, question)
        _gradient_of_lse(session, question, oracle)
    elif evidence := _evidence_of_detach(oracle, question, got, expected):
        session.add_mistake(
            "gradients",
            f"the largest gradient {describe_difference(error)}",
            "weights-detached",
            evidence[0],
            evidence[1],
            distance=error / GRADIENT_TOLERANCE,
        )
    else:
        which = "one" if reference is None else f"that of {worst}"
        session.add_failure("gradients", f"{which} {describe_difference(error)}, though the output is right")


def _gradient_tolerance(session: CheckSession) -> float:
    """Return the relative difference below which gradients agree: wider in half precision."""
    return max(GRADIENT_TOLERANCE, session.tolerance)


def _evidence_of_detach(
    oracle: Oracle, question: Question, got: dict[str, Tensor], expected: dict[str, Tensor]
) -> tuple[str, float | None] | None:
    """Return why wrong gradients are those of detached weights, and the remaining error; None if not."""
    if not isinstance(oracle, Intent):
        lost = [n for n in got if n in expected and bool(expected[n].any()) and not bool(got[n].any())]
        evidence = f"No gradient reaches {', '.join(lost[:4])}; in your reference one does."
        return (evidence, None) if lost else None
    tracked, variant = question.tracked(torch.float64), replace(CORRECT, detach="weights")
    output = variant.answer(oracle.apply(tracked), oracle.wiring).output
    detached = output_gradients(output, tracked.leaves())
    if isinstance(detached, str):
        return None
    remaining = max(map(relative_difference, got.values(), detached))
    what = get_mistake("weights-detached").what
    evidence = f"Your gradients equal those of attention {what}, {describe_agreement(remaining)}."
    return (evidence, remaining) if remaining < GRADIENT_TOLERANCE else None


def _expected_gradients(session: CheckSession, question: Question, oracle: Oracle) -> dict[str, Tensor] | str:
    """Return the right gradients by name, or text that says why the reference has none."""
    if session.reference is not None:
        return _gradients(session.reference.session, question, dict(session.reference.match.pairs))
    tracked = question.tracked(torch.float64)
    answer = oracle.answer(tracked)
    assert answer is not None
    return _named_gradients(answer.output, tracked.named_leaves())


def _gradients(
    session: CheckSession, question: Question, parameters: dict[str, str]
) -> dict[str, Tensor] | str:
    """Return the gradients by the inputs and by some parameters, or text that says why there are none.

    `parameters` holds their names in the module, by the names that they get in the result.
    """
    tracked = question.tracked(session.dtype)
    module = session.subject.runnable(session.dtype)
    reply = session.subject.run(tracked, module=module)
    if reply.answer is None:
        return reply.error_line
    own = {} if module is None else dict(module.named_parameters())
    tracking = {name: own[path] for name, path in parameters.items() if own[path].requires_grad}
    return _named_gradients(reply.answer.output, tracked.named_leaves() | tracking)


def _named_gradients(output: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor] | str:
    gradients = output_gradients(output, list(tensors.values()))
    return gradients if isinstance(gradients, str) else dict(zip(tensors, gradients, strict=True))


def _gradients_of_options(session: CheckSession, oracle: Oracle) -> None:
    """Compare the gradients under each option whose output was right: it may have a backward of its own."""
    for name, question in {question.name: question for question in reversed(session.right_questions)}.items():
        if failure := gradient_failure(session, session.compared, question, oracle):
            session.add_failure(f"gradients, {name}", failure)


def _gradient_of_strided(session: CheckSession, question: Question) -> None:
    """Compare the gradients for a gradient of the output that is not contiguous: models transpose outputs."""
    tracked = question.tracked(session.dtype)
    answer = session.compared.run(tracked).answer
    if answer is None:
        return
    leaves = tracked.leaves()
    plain, strided = (output_gradients(answer.output, leaves, transposed=t) for t in (False, True))
    if isinstance(plain, str) or isinstance(strided, str):
        return  # it refuses one of them, aloud
    error = max(map(relative_difference, strided, plain))
    if not error < _gradient_tolerance(session):
        session.add_failure(
            "gradients, transposed output",
            f"one {describe_difference(error)} where the gradient of the output is not contiguous, as for "
            "`output.transpose(1, 2)`",
        )


def _gradient_of_lse(session: CheckSession, question: Question, oracle: Oracle) -> None:
    """Compare the gradients of a returned log-sum-exp, with which parts of the keys are merged."""
    sides = [question.tracked(dtype) for dtype in (session.dtype, torch.float64)]
    answer, expected = session.compared.run(sides[0]).answer, oracle.answer(sides[1])
    if answer is None or answer.lse is None or expected is None or expected.lse is None:
        return
    if not answer.lse.requires_grad:
        return
    base = next(
        (
            b
            for b in (1.0, math.log(2))
            if relative_difference(answer.lse.detach(), expected.lse.detach() / b) < session.tolerance
        ),
        None,
    )
    if base is None:
        return  # its numbers are judged on their own
    got, want = (
        output_gradients(lse, [side.q, side.k])
        for lse, side in zip((answer.lse, expected.lse / base), sides, strict=True)
    )
    if isinstance(got, str) or isinstance(want, str):
        return
    error = max(map(relative_difference, got, want))
    if error < _gradient_tolerance(session):
        session.add_pass("gradient of lse", f"to {error:.0e}")
    elif not any(bool(gradient.any()) for gradient in got):
        # flash-attn's backward pass ignores the gradient of its softmax_lse, too.
        session.add_untried("gradient of lse", "it is 0: do not train with a loss that depends on the lse")
    else:
        session.add_failure("gradient of lse", f"one {describe_difference(error)}, though the lse is right")


def bias_gradient_failure(session: CheckSession, question: Question, intent: Intent) -> str:
    """Return how the gradient of numbers that are added to the scores is wrong; "" if it is right.

    It is not compared, and "" is returned, where the code refuses a bias that requires gradients.
    """
    if lacks_right_gradients(session):
        return ""
    assert question.bias is not None
    biases = [question.bias.to(d).clone().requires_grad_() for d in (session.dtype, torch.float64)]
    answer = session.compared.run(replace(question.to(session.dtype), bias=biases[0])).answer
    if answer is None:
        return ""
    expected = intent.answer(replace(question, bias=biases[1]))
    got, want = output_gradients(answer.output, biases[:1]), output_gradients(expected.output, biases[1:])
    assert not isinstance(want, str)
    if isinstance(got, str) and answer.output.requires_grad:
        return ""  # it refuses, aloud
    if isinstance(got, str) or not bool(got[0].any()):
        return NO_GRADIENT
    error = relative_difference(got[0], want[0])
    return "" if error < GRADIENT_TOLERANCE else f"its gradient {describe_difference(error)}"


def lacks_right_gradients(session: CheckSession) -> bool:
    """Return whether there are no gradients on a plain question that are equal to the oracle's."""
    passed = session.has_passed("gradients")
    return not passed or session.compared is not session.subject or not session.options.get("gradients", True)


def gradient_failure(session: CheckSession, subject: Subject, question: Question, oracle: Oracle) -> str:
    """Return how the gradients on a question with a right output differ from the oracle's; "" if they agree.

    They are not compared, and "" is returned, where the code has no backward pass that is right on a plain
    question, where it has none for this one, or where some rows have no right output.
    """
    if lacks_right_gradients(session):
        return ""
    sides = [question.tracked(dtype) for dtype in (session.dtype, torch.float64)]
    reply, expected = subject.run(sides[0]), oracle.answer(sides[1])
    if reply.answer is None or expected is None:
        return ""
    if expected.free is not None and bool(expected.free.any()):
        return ""
    got, want = (
        output_gradients(output, side.leaves())
        for output, side in zip((reply.answer.output, expected.output), sides, strict=True)
    )
    if isinstance(got, str):  # PyTorch's words for a backward pass that returns tensors of another shape
        return f"the backward pass fails: {got}" if "returned an invalid gradient" in got else ""
    if isinstance(want, str):  # a reference may have none under this option
        return ""
    error = max(map(relative_difference, got, want))
    if error < _gradient_tolerance(session):
        return ""
    return f"one {describe_difference(error)}, though the output is right"


def output_gradients(
    output: Tensor, tensors: list[Tensor], *, transposed: bool = False
) -> list[Tensor] | str:
    """Return the gradients of a fixed linear function of the output by each tensor; zeros where none flows.

    `transposed` gives the output a gradient that is not contiguous, with the same numbers. Text instead of
    gradients says why there are none.
    """
    if not output.requires_grad:
        return "the output does not require grad"
    draw = torch.Generator().manual_seed(6)
    direction = torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output.dtype)
    if transposed:
        output, direction = output.transpose(1, 2), direction.transpose(1, 2).contiguous()
    try:
        gradients = leaf_gradients((output * direction).sum(), tensors)
    except Exception as error:  # what the author's backward pass raises can be of any kind
        return (str(error).splitlines() or [type(error).__name__])[0][:160]
    return [
        torch.zeros_like(x, dtype=torch.float64) if g is None else g.double()
        for g, x in zip(gradients, tensors, strict=True)
    ]


def _sums_of_many_keys(session: CheckSession, intent: Intent) -> None:
    """Check the bfloat16 error on many keys of a function with a loop, which may add them up in bfloat16.

    Such a sum stops growing at 256 times its summands. PyTorch's own sums are taken in float32.
    """
    loops = re.search(r"^\s*(for|while)\b", session.source, re.M)
    if session.module is not None or not loops or not session.has_passed("bfloat16"):
        return
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


def _half_precision(session: CheckSession, oracle: Oracle) -> None:
    """Check the errors in float16 and bfloat16, if the code runs in them."""
    question = session.with_causal_flag(session.cases.plain(B=2, T=9, seed=22))
    for dtype in (torch.bfloat16, torch.float16):
        short = str(dtype).removeprefix("torch.")
        name = short if session.reference is None else f"{short} error"
        if dtype == torch.bfloat16 and has_wrong_bfloat16():
            session.add_skip(name, WRONG_BFLOAT16)
            continue
        measured = _ratio(session, question, oracle, dtype)
        masked = None
        if "mask" in session.arguments and session.reference is None:
            tokens_only = session.compared.mask_form.rank == 1  # a mask (B, S)
            masked = session.cases.padded(seed=23) if tokens_only else session.cases.masked(seed=23)
            masked = with_explicit_mask(session, masked)
        error_line = measured if isinstance(measured, str) else None
        if error_line is None and masked is not None:
            error_line = next(
                (t for t in [_ratio(session, masked, oracle, dtype)] if isinstance(t, str)), None
            )
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


def _extreme_scores(session: CheckSession, oracle: Oracle) -> None:
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
    return torch.float64 if session.subject.arrays else _FLOAT32


def check_extreme(session: CheckSession, question: Question, oracle: Oracle) -> str | bool | None:
    """Run a question with extreme scores, and diagnose a wrong answer.

    Returns None if the answer is right, True if it is wrong and recorded, or the error if there was one.
    """
    measured = _ratio(session, question, oracle, _extreme_dtype(session))
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


def _strides(session: CheckSession) -> None:
    """Check that inputs that are not contiguous in memory give the same output."""
    question = session.cases.plain("non-contiguous inputs", seed=24).to(session.dtype)
    strided = question.map_inputs(lambda x: x.transpose(-2, -1).contiguous().transpose(-2, -1))
    plain, reply = session.subject.run(question), session.subject.run(strided)
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


def _weights_and_lse(session: CheckSession, oracle: Oracle) -> None:
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
