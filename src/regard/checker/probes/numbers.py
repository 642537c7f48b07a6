"""Numerical checks: errors as ratios to PyTorch's own, gradients, extreme scores, strides, weights and lse.

All of them need an output that is right; they judge how accurate it is.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.checker.catalogue import get_mistake
from regard.checker.intent import TOLERANCE, Intent
from regard.checker.oracle.oracle import (
    describe_agreement,
    describe_difference,
    expected_answer,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.rotation import Rotation
from regard.checker.oracle.variant import CORRECT, Answer
from regard.checker.oracle.wiring import Wiring
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
    if session.right_intent is None:
        session.add_skip(
            "precision, gradients and extreme scores", "the output is not right, or was not compared"
        )
        return
    _precision(session, session.right_intent)
    probe_gradients(session, session.right_intent)
    _half_precision(session, session.right_intent)
    _sums_of_many_keys(session, session.right_intent)
    _extreme_scores(session, session.right_intent)
    _strides(session)
    _weights_and_lse(session, session.right_intent)


def pytorch_error(question: Question, intent: Intent, expected: Answer, dtype: torch.dtype) -> float:
    """Return PyTorch's error at this dtype: the larger of its plain operations' and its fused attention's."""
    interpreted = replace(intent.apply(question).to(dtype), layout="")
    if isinstance(rotation := intent.wiring.rotate, Rotation):  # whose angles are usually float32
        rotation = replace(rotation, precision=torch.float32)
        intent = replace(intent, wiring=replace(intent.wiring, rotate=rotation))
    with torch.no_grad():
        plain = CORRECT.answer(interpreted, intent.wiring)
        error = relative_error(plain, expected)
        special = (interpreted.softcap, interpreted.rule, intent.wiring.sinks, intent.wiring.bias)
        if all(part is None for part in special):
            error = max(error, relative_error(_fused_answer(interpreted, intent, plain), expected))
    return max(error, torch.finfo(dtype).eps / 2)


def _fused_answer(question: Question, intent: Intent, plain: Answer) -> Answer:
    """Return the answer of PyTorch's fused attention; the mask is read off the plain answer's weights."""
    wiring = intent.wiring
    q, k, v = wiring.project(question)
    q, k, v = wiring.position(q, k, v)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    assert plain.weights is not None
    allowed = plain.weights > 0
    mask = None if bool(allowed.all()) else allowed
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=wiring.scale)
    return Answer(wiring.finish(mixed, None)[0])


def _ratio(
    session: CheckSession, question: Question, intent: Intent, dtype: torch.dtype
) -> tuple[float, float] | str:
    """Return the subject's error and its ratio to PyTorch's own, or the error line if it failed."""
    reply = session.compared.run(question.to(dtype))
    if reply.answer is None:
        return reply.error_line
    expected = _expected(question, intent, dtype)
    error = relative_error(reply.answer, expected)
    return error, error / pytorch_error(question, intent, expected, dtype)


def _expected(question: Question, intent: Intent, dtype: torch.dtype) -> Answer:
    """Return the correct answer, in float64, for inputs and weights that are first rounded to `dtype`."""
    wiring = intent.wiring
    layers = {
        role: layer._replace(
            weight=layer.weight.to(dtype).double(),
            bias=None if layer.bias is None else layer.bias.to(dtype).double(),
        )
        for role in ("query", "key", "value", "out")
        if (layer := getattr(wiring, role)) is not None
    }
    with torch.no_grad():
        return expected_answer(intent.apply(question.to(dtype)), replace(wiring, **layers))


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


def _precision(session: CheckSession, intent: Intent) -> None:
    """Check the float32 error at several sizes."""
    worst, error = 0.0, 0.0
    for question in _sizes(session):
        measured = _ratio(session, question, intent, _FLOAT32)
        if isinstance(measured, str):
            session.add_failure("float32 error", f"{question.shapes()} raised {measured}")
            return
        if measured[1] > worst or measured[0] != measured[0]:
            error, worst = measured
        if not worst <= LIMIT:
            detail = f"{error:.1e}, {worst:.0f}× PyTorch's own, on {question.shapes()}"
            record_imprecision(session, "float32 error", detail, error, worst / LIMIT)
            return
    session.add_pass("float32 error", f"{error:.1e} at most, {worst:.1f}× PyTorch's own")


def record_imprecision(session: CheckSession, name: str, detail: str, error: float, distance: float) -> None:
    """Record an error that is too large, as lost precision if it is small enough for that."""
    if 1e-5 < error < 3e-2:
        evidence = f"The output is right only to {error:.0e}, {detail.partition(', ')[2]}."
        session.add_mistake(name, detail, "precision-lost", evidence, error, distance=distance)
    else:
        session.add_failure(name, detail)


def probe_gradients(session: CheckSession, intent: Intent) -> None:
    """Compare the gradients of the inputs with the oracle's."""
    if not session.options.get("gradients", True):
        session.add_skip("gradients", "as you asked")
        return
    question = session.cases.plain("gradients", seed=21)
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        question = replace(question, flag=True)
    missing, failure = run_backward(session, question)
    if failure:
        session.add_failure("gradients", f"the output is right, but its backward pass raises {failure}")
        return
    if session.compared is not session.subject:  # the oracle knows only a part of the module
        probe_derivatives(session)
        return
    if missing:
        session.add_skip("gradients", f"it has no backward pass: {missing}")
        return
    got = _input_gradients(session, question, intent, None)
    if isinstance(got, str) and re.search(r"@(torch\.)?(no_grad|inference_mode)", session.source):
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
    expected = _input_gradients(session, question, intent, expected_answer)
    detached = _input_gradients(session, question, intent, _with_detached_weights)
    assert not isinstance(expected, str)
    error = max(relative_difference(a, b) for a, b in zip(got, expected, strict=True))
    if error < GRADIENT_TOLERANCE:
        session.add_pass("gradients", f"to {error:.0e}")
        _gradients_of_options(session, intent)
        _gradient_of_strided(session, question)
        _gradient_of_lse(session, question, intent)
    elif not isinstance(detached, str) and max(map(relative_difference, got, detached)) < GRADIENT_TOLERANCE:
        remaining = max(map(relative_difference, got, detached))
        what = get_mistake("weights-detached").what
        session.add_mistake(
            "gradients",
            f"the largest gradient {describe_difference(error)}",
            "weights-detached",
            f"Your gradients equal those of attention {what}, {describe_agreement(remaining)}.",
            remaining,
            distance=error / GRADIENT_TOLERANCE,
        )
    else:
        session.add_failure("gradients", f"one {describe_difference(error)}, though the output is right")


def _gradients_of_options(session: CheckSession, intent: Intent) -> None:
    """Compare the gradients under each option whose output was right: it may have a backward of its own."""
    for name, question in {question.name: question for question in reversed(session.right_questions)}.items():
        if failure := gradient_failure(session, session.compared, question, intent):
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
    if not error < GRADIENT_TOLERANCE:
        session.add_failure(
            "gradients, transposed output",
            f"one {describe_difference(error)} where the gradient of the output is not contiguous, as for "
            "`output.transpose(1, 2)`",
        )


def _gradient_of_lse(session: CheckSession, question: Question, intent: Intent) -> None:
    """Compare the gradients of a returned log-sum-exp, with which parts of the keys are merged."""
    sides = [question.tracked(dtype) for dtype in (session.dtype, torch.float64)]
    answer, expected = (
        session.compared.run(sides[0]).answer,
        expected_answer(intent.apply(sides[1]), intent.wiring),
    )
    if answer is None or answer.lse is None or expected.lse is None or not answer.lse.requires_grad:
        return
    base = next(
        (
            b
            for b in (1.0, math.log(2))
            if relative_difference(answer.lse.detach(), expected.lse.detach() / b) < TOLERANCE
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
    if error < GRADIENT_TOLERANCE:
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
    outputs: list[Tensor] = []
    biases: list[Tensor] = []
    for dtype in (session.dtype, torch.float64):
        asked = question.to(dtype)
        assert asked.bias is not None
        biases.append(asked.bias.clone().requires_grad_())
        asked = replace(asked, bias=biases[-1])
        if not outputs:
            answer = session.compared.run(asked).answer
        else:
            answer = expected_answer(intent.apply(asked), intent.wiring)
        if answer is None:
            return ""
        outputs.append(answer.output)
    got, want = (output_gradients(output, [bias]) for output, bias in zip(outputs, biases, strict=True))
    assert not isinstance(want, str)
    if isinstance(got, str) and outputs[0].requires_grad:
        return ""  # it refuses, aloud
    if isinstance(got, str) or not bool(got[0].any()):
        return NO_GRADIENT
    error = relative_difference(got[0], want[0])
    return "" if error < GRADIENT_TOLERANCE else f"its gradient {describe_difference(error)}"


def lacks_right_gradients(session: CheckSession) -> bool:
    """Return whether there are no gradients on a plain question that are equal to the oracle's."""
    passed = session.has_passed("gradients")
    return not passed or session.compared is not session.subject or not session.options.get("gradients", True)


def gradient_failure(session: CheckSession, subject: Subject, question: Question, intent: Intent) -> str:
    """Return how the gradients on a question with a right output differ from the oracle's; "" if they agree.

    They are not compared, and "" is returned, where the code has no backward pass that is right on a plain
    question, where it has none for this one, or where some rows have no right output.
    """
    if lacks_right_gradients(session):
        return ""
    sides = [question.tracked(dtype) for dtype in (session.dtype, torch.float64)]
    reply = subject.run(sides[0])
    if reply.answer is None:
        return ""
    expected = expected_answer(intent.apply(sides[1]), intent.wiring)
    if expected.free is not None and bool(expected.free.any()):
        return ""
    got, want = (
        output_gradients(output, side.leaves())
        for output, side in zip((reply.answer.output, expected.output), sides, strict=True)
    )
    if isinstance(got, str):  # PyTorch's words for a backward pass that returns tensors of another shape
        return f"the backward pass fails: {got}" if "returned an invalid gradient" in got else ""
    assert not isinstance(want, str)
    error = max(map(relative_difference, got, want))
    if error < GRADIENT_TOLERANCE:
        return ""
    return f"one {describe_difference(error)}, though the output is right"


def _with_detached_weights(question: Question, wiring: Wiring) -> Answer:
    return replace(CORRECT, detach="weights").answer(question, wiring)


def _input_gradients(
    session: CheckSession,
    question: Question,
    intent: Intent,
    oracle: Callable[[Question, Wiring], Answer] | None,
) -> list[Tensor] | str:
    """Return the gradients of a fixed linear function of the output by each input; zeros where none flows.

    `oracle` computes the output; None runs the subject. Text instead of gradients says why there are none.
    """
    tracked = question.to(session.dtype if oracle is None else torch.float64)
    tracked = tracked.map_inputs(lambda x: x.clone().requires_grad_())
    if oracle is None:
        reply = session.compared.run(tracked)
        if reply.answer is None:
            return reply.error_line
        output = reply.answer.output
    else:
        output = oracle(intent.apply(tracked), intent.wiring).output
    return output_gradients(output, tracked.leaves())


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
    reply = session.compared.run(question.to(torch.bfloat16))
    if reply.answer is None:
        return  # longer than the texts that it takes
    exact = _expected(question, intent, torch.bfloat16)
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


def _half_precision(session: CheckSession, intent: Intent) -> None:
    """Check the errors in float16 and bfloat16, if the code runs in them."""
    question = session.cases.plain(B=2, T=9, seed=22)
    if session.subject.arguments.get("causal") and session.options.get("causal") is None:
        question = replace(question, flag=True)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        if dtype == torch.bfloat16 and has_wrong_bfloat16():
            session.add_skip(name, WRONG_BFLOAT16)
            continue
        measured = _ratio(session, question, intent, dtype)
        masked = None
        if "mask" in session.subject.arguments:
            tokens_only = session.compared.mask_form.rank == 1  # a mask (B, S)
            masked = session.cases.padded(seed=23) if tokens_only else session.cases.masked(seed=23)
            masked = with_explicit_mask(session, masked)
        error_line = measured if isinstance(measured, str) else None
        if error_line is None and masked is not None:
            error_line = next(
                (t for t in [_ratio(session, masked, intent, dtype)] if isinstance(t, str)), None
            )
        if error_line is not None and "overflow" in error_line:
            session.add_mistake(
                name,
                error_line,
                "finite-mask-value",
                f"In {name} it raises “{error_line.partition(': ')[2]}”: the mask's value does not fit.",
                distance=math.inf,
            )
        elif error_line is not None:
            session.add_skip(name, f"it does not run in {name}: {error_line}")
        elif not isinstance(measured, str) and not measured[1] <= LIMIT:
            session.add_failure(name, f"{measured[0]:.1e}, {measured[1]:.0f}× PyTorch's own")
        elif not isinstance(measured, str):
            session.add_pass(name, f"{measured[0]:.1e}, {measured[1]:.1f}× PyTorch's own")


def _extreme_scores(session: CheckSession, intent: Intent) -> None:
    """Check scores in the hundreds: softmax must neither overflow nor lose the visible keys."""
    flag: dict[str, Any] = {}
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        flag["flag"] = True
    size = extreme_size(session)
    questions = [session.cases.plain("extreme scores", seed=seed, size=size) for seed in (30, 31)]
    if session.module is None and session.subject.inputs == "qkv":
        # All scores of a row are far below 0: a running maximum must not begin there.
        opposite = torch.full(questions[0].k.shape[-1:], size, dtype=torch.float64)
        questions.append(replace(questions[0], q=questions[0].q + opposite, k=questions[0].k - opposite))
    for question in questions:
        measured = check_extreme(session, replace(question, **flag), intent)
        if isinstance(measured, str):
            session.add_failure("extreme scores", measured)
        if measured is not None:
            return
    session.add_pass("extreme scores")


def extreme_size(session: CheckSession) -> float:
    """Return the size of inputs whose scores are in the hundreds."""
    if session.subject.arrays:
        return 40.0  # NumPy computes in float64, whose exponentials overflow at 709
    return 14.0 if session.module is None else 12.0


def _extreme_dtype(session: CheckSession) -> torch.dtype:
    return torch.float64 if session.subject.arrays else _FLOAT32


def check_extreme(session: CheckSession, question: Question, intent: Intent) -> str | bool | None:
    """Run a question with extreme scores, and diagnose a wrong answer.

    Returns None if the answer is right, True if it is wrong and recorded, or the error if there was one.
    """
    measured = _ratio(session, question, intent, _extreme_dtype(session))
    if isinstance(measured, str):
        return measured
    error, ratio = measured
    if ratio <= LIMIT or error <= ROUNDED_SCORES:
        return None
    _diagnose_extreme_scores(session, question, intent, error, ratio / LIMIT)
    return True


def _extreme_changes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the mistakes that extreme scores show; a value that hides too little is filled in, or added."""
    for name in ("softmax-overflow", "renormalised-after-softmax", "weak-mask-value"):
        yield from ((name, change) for change in get_mistake(name).changes)
    for value, masking in itertools.product(range(-1, -1001, -1), ("fill", "add fill")):
        yield "weak-mask-value", {"fill": float(value), "masking": masking}


def _diagnose_extreme_scores(
    session: CheckSession, question: Question, intent: Intent, error: float, distance: float
) -> None:
    dtype = _extreme_dtype(session)
    reply = session.compared.run(question.to(dtype))
    assert reply.answer is not None
    interpreted = intent.apply(question).to(dtype)
    broken = not bool(reply.answer.output.isfinite().all())
    detail = "NaN or inf where scores are in the hundreds" if broken else describe_difference(error)
    for name, change in _extreme_changes():
        with torch.no_grad():
            answer = replace(CORRECT, **change).answer(interpreted, intent.wiring)
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
    elif (error := relative_error(reply.answer, plain.answer)) < TOLERANCE:
        session.add_pass("non-contiguous inputs")
    else:
        detail = f"{describe_difference(error)}, though right on contiguous ones"
        session.add_failure("non-contiguous inputs", detail)


def _weights_and_lse(session: CheckSession, intent: Intent) -> None:
    """Check the weights and the log-sum-exp, if the code returns them."""
    question = session.cases.plain("weights", seed=25)
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        question = replace(question, flag=True)
    reply = session.compared.run(question.to(session.dtype))
    if reply.answer is None:
        return
    expected = expected_answer(intent.apply(question), intent.wiring)
    if reply.answer.weights is not None and expected.weights is not None:
        judge_weights(session, reply.answer.weights.double(), expected.weights)
        _weights_under_masks(session, intent)
    if reply.answer.lse is not None and expected.lse is not None:
        judge_lse(session, reply.answer.lse.double(), expected.lse)


def _weights_under_masks(session: CheckSession, intent: Intent) -> None:
    """Check that the weights that are returned with a mask are those that give the output."""
    if not session.has_passed("weights"):
        return
    for question in session.right_questions:
        if question.mask is None and question.padding is None:
            continue
        answer = session.compared.run(question.to(session.dtype)).answer
        expected = expected_answer(intent.apply(question), intent.wiring)
        if answer is None or answer.weights is None or expected.weights is None:
            continue
        wanted, got = expected.weights, answer.weights.double()
        if got.shape[1] != wanted.shape[1]:  # averaged over the heads
            wanted = wanted.mean(1, keepdim=True)
        seen = wanted.sum(-1, keepdim=True) > 0.5  # rows without a visible key may hold anything
        error = relative_difference(got.where(seen, wanted), wanted)
        if not error < TOLERANCE:
            detail = (
                f"not those that give the output with a {question.name}: one {describe_difference(error)}"
            )
            session.add_failure("weights", detail)
            return


def judge_weights(session: CheckSession, got: Tensor, expected: Tensor) -> None:
    """Compare returned weights (B, H, T, S), or their mean over the heads, with the expected ones."""
    if got.shape[1] != expected.shape[1]:  # averaged over the heads
        expected = expected.mean(1, keepdim=True)
    error = relative_difference(got, expected)
    sums = float((got.sum(-1) - 1).abs().max())
    if error < TOLERANCE:
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
    if error < TOLERANCE:
        session.add_pass("lse", "natural logarithm")
    elif base_2 < TOLERANCE and _SAYS_BASE_2.search(
        f"{session.subject.name} {session.subject.target.__doc__}"
    ):
        session.add_pass("lse", "base 2, as its name or docstring says")
    elif base_2 < TOLERANCE:
        session.add_mistake(
            "lse",
            describe_difference(error),
            "lse-base-2",
            f"The returned lse equals the natural one divided by ln 2, {describe_agreement(base_2)}.",
            base_2,
            distance=error / TOLERANCE,
        )
    else:
        session.add_failure("lse", describe_difference(error))
