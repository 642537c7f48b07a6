"""The right numbers in every precision: errors as ratios to PyTorch's own, gradients, extreme scores,
strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.checker.catalogue import mistake
from regard.checker.oracle.oracle import apart, distance, truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT, Answer
from regard.checker.oracle.wiring import Wiring
from regard.checker.probes.output import brought
from regard.checker.session import CheckSession
from regard.checker.understand import Intent

LIMIT = 10.0  # times PyTorch's own error at the same dtype
_FLOAT32 = torch.float32


def probe_numbers(exam: CheckSession) -> None:
    """Everything that can be measured once the output is known to be right in principle."""
    if exam.right is None:
        exam.left_out("precision, gradients and extreme scores", "the output is not known to be right")
        return
    _precision(exam, exam.right)
    _gradients(exam, exam.right)
    _halves(exam, exam.right)
    _extreme(exam, exam.right)
    _strides(exam, exam.right)
    _weights_and_lse(exam, exam.right)


def pytorch_error(question: Question, intent: Intent, expected: Answer, dtype: torch.dtype) -> float:
    """PyTorch's own error at this dtype: the worse of its plain operations and its fused attention."""
    asked = intent.read(question).to(dtype)
    with torch.no_grad():
        plain = RIGHT.answer(asked, intent.wiring)
        error = apart(plain, expected)
        if asked.softcap is None and intent.wiring.sinks is None and asked.rule is None:
            error = max(error, apart(_fused(asked, intent, plain), expected))
    return max(error, torch.finfo(dtype).eps / 2)


def _fused(question: Question, intent: Intent, plain: Answer) -> Answer:
    wiring = intent.wiring
    q, k, v = wiring.project(question)
    q, k = wiring.position(q, k, question)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    allowed = None if plain.weights is None else plain.weights > 0
    causal = allowed if question.causal or question.mask is not None else None
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=causal, scale=wiring.scale)
    return Answer(wiring.finish(mixed, None)[0])


def _ratio(
    exam: CheckSession, question: Question, intent: Intent, dtype: torch.dtype
) -> tuple[float, float] | str:
    """The subject's error and its ratio to PyTorch's own, or why there is none."""
    reply = exam.subject.ask(question.to(dtype))
    if reply.answer is None:
        return reply.trouble
    expected = _expected(question, intent, dtype)
    error = apart(reply.answer, expected)
    return error, error / pytorch_error(question, intent, expected, dtype)


def _expected(question: Question, intent: Intent, dtype: torch.dtype) -> Answer:
    """The float64 truth for inputs and weights that were rounded to `dtype` first."""
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
        return truth(intent.read(question.to(dtype)), replace(wiring, **layers))


def _sizes(exam: CheckSession) -> list[Question]:
    plain, module = exam.cases.plain, exam.module is not None
    questions = [
        plain(B=1, T=1),
        plain(B=1, T=2, H=1, D=8),
        plain(B=3, T=5, H=2, D=6),
        plain(B=2, T=16, H=3, D=32),
    ]
    questions += (
        [plain(B=1, T=12, seed=20)] if module else [plain(B=1, T=33, H=2, D=64), plain(B=2, T=65, H=1, D=16)]
    )
    return questions


def _precision(exam: CheckSession, intent: Intent) -> None:
    worst, error = 0.0, 0.0
    for question in _sizes(exam):
        measured = _ratio(exam, question, intent, _FLOAT32)
        if isinstance(measured, str):
            exam.failed("float32 error", f"{question.shapes()} raised {measured}")
            return
        if measured[1] > worst or measured[0] != measured[0]:
            error, worst = measured
        if not worst <= LIMIT:
            detail = f"{error:.1e}, {worst:.0f}× PyTorch's own, on {question.shapes()}"
            _too_far(exam, "float32 error", detail, question, intent, error)
            return
    exam.passed("float32 error", f"{error:.1e} at most, {worst:.1f}× PyTorch's own")


def _too_far(
    exam: CheckSession, name: str, detail: str, question: Question, intent: Intent, error: float
) -> None:
    if 1e-5 < error < 3e-2:
        evidence = f"The output is right to {error:.0e} only, {detail.partition(', ')[2]}."
        exam.found(name, detail, "precision-lost", evidence, error)
    else:
        exam.failed(name, detail)


def _gradients(exam: CheckSession, intent: Intent) -> None:
    """The gradients of the inputs against the oracle's."""
    question = exam.cases.plain("gradients", seed=21)
    if "causal" in exam.subject.arguments and exam.options.get("causal") is None:
        question = replace(question, flag=True)
    got = _input_gradients(exam, question, intent, None)
    if isinstance(got, str):
        exam.found("gradients", got, "weights-detached", f"The output has no gradient at all: {got}.")
        return
    expected = _input_gradients(exam, question, intent, truth)
    detached = _input_gradients(exam, question, intent, _without_weights)
    assert not isinstance(expected, str)
    error = max(distance(a, b) for a, b in zip(got, expected, strict=True))
    if error < 1e-4:
        exam.passed("gradients", f"to {error:.0e}")
    elif not isinstance(detached, str) and max(map(distance, got, detached)) < 1e-4:
        left = max(map(distance, got, detached))
        what = mistake("weights-detached").what
        exam.found(
            "gradients",
            f"off by {error:.1g}",
            "weights-detached",
            f"Your gradients equal those of attention {what}, to {left:.0e}.",
            left,
        )
    else:
        exam.failed("gradients", f"off by {error:.1g} of the largest, though the output is right")


def _without_weights(question: Question, wiring: Wiring) -> Answer:
    return replace(RIGHT, detach="weights").answer(question, wiring)


def _input_gradients(
    exam: CheckSession,
    question: Question,
    intent: Intent,
    oracle: Callable[[Question, Wiring], Answer] | None,
) -> list[Tensor] | str:
    """The gradient of a fixed linear function of the output by each input; zeros where none flows."""
    asked = question.to(exam.understood.dtype if oracle is None else torch.float64)
    asked = asked.mapped(lambda x: x.clone().requires_grad_())
    if oracle is None:
        reply = exam.subject.ask(asked)
        if reply.answer is None:
            return reply.trouble
        output = reply.answer.output
    else:
        output = oracle(intent.read(asked), intent.wiring).output
    if not output.requires_grad:
        return "the output does not require grad"
    draw = torch.Generator().manual_seed(6)
    direction = torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output.dtype)
    inputs = list({id(x): x for x in (asked.q, asked.k, asked.v)}.values())
    gradients = torch.autograd.grad((output * direction).sum(), inputs, allow_unused=True)
    return [
        torch.zeros_like(x, dtype=torch.float64) if g is None else g.double()
        for g, x in zip(gradients, inputs, strict=True)
    ]


def _halves(exam: CheckSession, intent: Intent) -> None:
    """float16 and bfloat16, where the code allows them."""
    question = exam.cases.plain(B=2, T=9, seed=22)
    if exam.subject.arguments.get("causal") and exam.options.get("causal") is None:
        question = replace(question, flag=True)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        measured = _ratio(exam, question, intent, dtype)
        masked = brought(exam, exam.cases.masked(seed=23)) if "mask" in exam.subject.arguments else None
        trouble = measured if isinstance(measured, str) else None
        if trouble is None and masked is not None:
            trouble = next((t for t in [_ratio(exam, masked, intent, dtype)] if isinstance(t, str)), None)
        if trouble is not None and "overflow" in trouble:
            exam.found(
                name,
                trouble,
                "finite-mask-value",
                f"In {name} it raises “{trouble.partition(': ')[2]}”: the mask's value does not fit.",
            )
        elif trouble is not None:
            exam.left_out(name, f"it does not run in {name}: {trouble}")
        elif not isinstance(measured, str) and not measured[1] <= LIMIT:
            exam.failed(name, f"{measured[0]:.1e}, {measured[1]:.0f}× PyTorch's own")
        elif not isinstance(measured, str):
            exam.passed(name, f"{measured[0]:.1e}, {measured[1]:.1f}× PyTorch's own")


def _extreme(exam: CheckSession, intent: Intent) -> None:
    """Scores in the hundreds: softmax must neither overflow nor lose the visible ones."""
    flag: dict[str, Any] = {}
    if "causal" in exam.subject.arguments and exam.options.get("causal") is None:
        flag["flag"] = True
    size = 14.0 if exam.module is None else 12.0
    for seed in (30, 31):
        question = replace(exam.cases.plain("extreme scores", seed=seed, size=size), **flag)
        measured = _ratio(exam, question, intent, _FLOAT32)
        if isinstance(measured, str):
            exam.failed("extreme scores", measured)
            return
        error, ratio = measured
        if not ratio <= LIMIT:
            _name_extreme(exam, question, intent, error)
            return
    exam.passed("extreme scores")


def _name_extreme(exam: CheckSession, question: Question, intent: Intent, error: float) -> None:
    reply = exam.subject.ask(question.to(_FLOAT32))
    assert reply.answer is not None
    asked = intent.read(question).to(_FLOAT32)
    broken = not bool(reply.answer.output.isfinite().all())
    detail = "NaN or inf where scores are in the hundreds" if broken else f"off by {error:.1g}"
    for name in ("softmax-overflow", "renormalised-after-softmax", "weak-mask-value"):
        for change in mistake(name).changes:
            with torch.no_grad():
                answer = replace(RIGHT, **change).answer(asked, intent.wiring)
            left = apart(reply.answer, answer)
            if left < 1e-2:
                evidence = f"With scores in the hundreds your output equals attention {mistake(name).what}"
                exam.found("extreme scores", detail, name, f"{evidence}, NaN for NaN, to {left:.0e}.", left)
                return
    if broken:
        exam.found("extreme scores", detail, "softmax-overflow", f"The output holds {detail}.")
    else:
        exam.failed("extreme scores", detail)


def _strides(exam: CheckSession, intent: Intent) -> None:
    """The same numbers in another order in memory."""
    question = exam.cases.plain("non-contiguous inputs", seed=24)
    strided = question.mapped(lambda x: x.transpose(-2, -1).contiguous().transpose(-2, -1))
    reply = exam.subject.ask(strided.to(exam.understood.dtype))
    if reply.answer is None and "view" in reply.trouble:
        evidence = f"Inputs that are not contiguous raise {reply.trouble[:120]}"
        exam.found("non-contiguous inputs", "they are refused", "view-of-strided", evidence)
        return
    if reply.answer is None:
        exam.left_out("non-contiguous inputs", f"they are refused: {reply.trouble}")
        return
    error = apart(reply.answer, truth(intent.read(question), intent.wiring))
    if error < 2e-5:
        exam.passed("non-contiguous inputs")
    else:
        exam.failed("non-contiguous inputs", f"off by {error:.1g}, though right on contiguous ones")


def _weights_and_lse(exam: CheckSession, intent: Intent) -> None:
    question = exam.cases.plain("weights", seed=25)
    if "causal" in exam.subject.arguments and exam.options.get("causal") is None:
        question = replace(question, flag=True)
    reply = exam.subject.ask(question.to(exam.understood.dtype))
    if reply.answer is None:
        return
    expected = truth(intent.read(question), intent.wiring)
    if reply.answer.weights is not None and expected.weights is not None:
        _judge_weights(exam, reply.answer.weights.double(), expected.weights)
    if reply.answer.lse is not None and expected.lse is not None:
        _judge_lse(exam, reply.answer.lse.double(), expected.lse)


def _judge_weights(exam: CheckSession, got: Tensor, expected: Tensor) -> None:
    if got.shape[1] != expected.shape[1]:  # averaged over the heads
        expected = expected.mean(1, keepdim=True)
    error = distance(got, expected)
    sums = float((got.sum(-1) - 1).abs().max())
    if error < 2e-5:
        exam.passed("weights", "rows sum to 1, and they are the ones that were used")
    elif sums > 1e-4:
        exam.failed("weights", f"the returned weights are not rows that sum to 1 (off by {sums:.1g})")
    else:
        exam.failed(
            "weights", f"the returned weights are not the ones behind the output (off by {error:.1g})"
        )


def _judge_lse(exam: CheckSession, got: Tensor, expected: Tensor) -> None:
    error, in_bits = distance(got, expected), distance(got, expected / torch.tensor(2.0).double().log())
    if error < 2e-5:
        exam.passed("lse", "natural logarithm")
    elif in_bits < 2e-5:
        exam.found(
            "lse",
            f"off by {error:.1g}",
            "lse-base-2",
            f"The returned lse equals the natural one divided by ln 2, to {in_bits:.0e}.",
            in_bits,
        )
    else:
        exam.failed("lse", f"the returned lse is off by {error:.1g}")
