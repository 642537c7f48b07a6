"""Gradients: whether the code has a backward pass, and whether its gradients are right.

They are compared with the oracle's, those of inputs, weights, options, strided tensors and the lse; without
an oracle, derivatives are compared with the difference of two outputs. Custom operators and kernels often
have no backward pass. A detach in differentiable code is a mistake; an operator without a derivative is not.
They are told apart by following the numbers: through PyTorch's own operators they could have been
differentiated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.catalogue import get_mistake
from regard.checker.oracle.oracle import Intent, describe_agreement, describe_difference, relative_difference
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.session import CheckSession, Oracle
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS
from regard.checker.subject.subject import FollowInputs, Reply, Subject

GRADIENT_TOLERANCE = 1e-4  # relative
NO_GRADIENT = "it gets no gradient, though the output depends on it"


def probe_gradients(session: CheckSession, oracle: Oracle) -> None:
    """Compare the gradients of the inputs, and of parameters that a reference has too, with the oracle's."""
    if not session.options.get("gradients", True):
        session.add_skip("gradients", "as you asked")
        return
    question = session.with_causal_flag(session.cases.plain("gradients", seed=21))
    is_part = session.compared is not session.subject  # the oracle knows only a part of the module
    reference = session.reference
    shared = [] if reference is None else reference.match.pairs
    expected: dict[str, Tensor] | str | None = {}
    if reference is not None:
        expected = _gradients(reference.session, question, dict(shared))
    elif not is_part:
        expected = _oracle_gradients(oracle, question)
    assert expected is not None
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
    if missing and reference is None:  # a reference with gradients shows that there should be some
        session.add_skip("gradients", f"it has no backward pass: {missing}")
        return
    got = _gradients(session, question, {name: name for name, _ in shared})
    untracked = re.search(r"@(torch\.)?(no_grad|inference_mode)", session.source)
    if isinstance(got, str):
        if untracked and reference is None:
            session.add_skip("gradients", "it switches them off itself: @torch.no_grad")
            return
        what = f"The output has no gradient at all: {got}."
        session.add_mistake("gradients", got, "weights-detached", what, distance=math.inf)
        return
    errors = {name: relative_difference(got[name], expected[name]) for name in got if name in expected}
    worst, error = max(errors.items(), key=lambda item: item[1])
    if error < _gradient_tolerance(session):
        session.add_pass("gradients", f"to {error:.0e}")
        # Under each option whose output was right: it may have a backward of its own.
        for name, option in session.right_questions.items():
            if failure := gradient_failure(session, session.compared, option, oracle):
                session.add_failure(f"gradients, {name}", failure)
        _gradient_of_strided(session, question)
        _gradient_of_lse(session, question, oracle)
    elif evidence := _evidence_of_detach(oracle, question, got, expected):
        detail, distance = f"the largest gradient {describe_difference(error)}", error / GRADIENT_TOLERANCE
        session.add_mistake("gradients", detail, "weights-detached", *evidence, distance=distance)
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
    detached = output_gradients(output, tracked.named_leaves())
    if isinstance(detached, str):
        return None
    remaining = largest_difference(got, detached)
    what = get_mistake("weights-detached").what
    evidence = f"Your gradients equal those of attention {what}, {describe_agreement(remaining)}."
    return (evidence, remaining) if remaining < GRADIENT_TOLERANCE else None


def _oracle_gradients(
    oracle: Oracle, question: Question, *, whole: bool = False
) -> dict[str, Tensor] | str | None:
    """Return the right gradients of the inputs, or text that says why there are none.

    None if there is no right output; with `whole`, also if that of some rows is free.
    """
    tracked = question.tracked(torch.float64)
    answer = oracle.answer(tracked)
    if answer is None or (whole and answer.free is not None and bool(answer.free.any())):
        return None
    return output_gradients(answer.output, tracked.named_leaves())


def _gradients(
    session: CheckSession, question: Question, parameters: dict[str, str], subject: Subject | None = None
) -> dict[str, Tensor] | str:
    """Return the gradients by the inputs and by some parameters, or text that says why there are none.

    `parameters` holds their names in the module, by the names that they get in the result.
    """
    subject, tracked = subject or session.subject, question.tracked(session.dtype)
    module = subject.runnable(session.dtype)
    reply = subject.run(tracked, module=module)
    if reply.answer is None:
        return reply.error_line
    own = {} if module is None else dict(module.named_parameters())
    tracking = {name: own[path] for name, path in parameters.items() if own[path].requires_grad}
    return output_gradients(reply.answer.output, tracked.named_leaves() | tracking)


def _gradient_of_strided(session: CheckSession, question: Question) -> None:
    """Compare the gradients for a gradient of the output that is not contiguous: models transpose outputs."""
    tracked = question.tracked(session.dtype)
    answer = session.compared.run(tracked).answer
    if answer is None:
        return
    leaves = tracked.named_leaves()
    plain, strided = (output_gradients(answer.output, leaves, transposed=t) for t in (False, True))
    if isinstance(plain, str) or isinstance(strided, str):
        return  # it refuses one of them, aloud
    error = largest_difference(strided, plain)
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
    lses = [expected.lse / base for base in (1.0, math.log(2))]
    same = [lse for lse in lses if relative_difference(answer.lse.detach(), lse.detach()) < session.tolerance]
    if not same:
        return  # its numbers are judged on their own
    got, want = (
        output_gradients(lse, {"q": side.q, "k": side.k})
        for lse, side in zip((answer.lse, same[0]), sides, strict=True)
    )
    if isinstance(got, str) or isinstance(want, str):
        return
    error = largest_difference(got, want)
    if error < _gradient_tolerance(session):
        session.add_pass("gradient of lse", f"to {error:.0e}")
    elif not any(bool(gradient.any()) for gradient in got.values()):
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
    got, want = (
        output_gradients(output, {"bias": bias})
        for output, bias in zip((answer.output, expected.output), biases, strict=True)
    )
    assert not isinstance(want, str)
    if isinstance(got, str) and answer.output.requires_grad:
        return ""  # it refuses, aloud
    if isinstance(got, str) or not bool(got["bias"].any()):
        return NO_GRADIENT
    error = largest_difference(got, want)
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
    if (want := _oracle_gradients(oracle, question, whole=True)) is None:
        return ""
    got = _gradients(session, question, {}, subject)
    if isinstance(got, str):  # PyTorch's words for a backward pass that returns tensors of another shape
        return f"the backward pass fails: {got}" if "returned an invalid gradient" in got else ""
    if isinstance(want, str):  # a reference may have none under this option
        return ""
    error = largest_difference(got, want)
    if error < _gradient_tolerance(session):
        return ""
    return f"one {describe_difference(error)}, though the output is right"


def largest_difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """Return the largest relative difference between gradients of the same name."""
    return max(relative_difference(gradient, want[name]) for name, gradient in got.items())


def output_gradients(
    output: Tensor, leaves: dict[str, Tensor], *, transposed: bool = False
) -> dict[str, Tensor] | str:
    """Return the gradients of a fixed linear function of the output by each leaf; zeros where none flows.

    `transposed` gives the output a gradient that is not contiguous, with the same numbers. Text instead of
    gradients says why there are none.
    """
    if not output.requires_grad:
        return "the output does not require grad"
    draw = torch.Generator().manual_seed(6)
    # Drawn in float64 and then rounded, so that it is the same direction in every precision.
    direction = torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output.dtype)
    if transposed:
        output, direction = output.transpose(1, 2), direction.transpose(1, 2).contiguous()
    try:
        gradients = leaf_gradients((output * direction).sum(), list(leaves.values()))
    except Exception as error:  # what the author's backward pass raises can be of any kind
        return (str(error).splitlines() or [type(error).__name__])[0][:160]
    return {
        name: torch.zeros_like(x, dtype=torch.float64) if g is None else g.double()
        for g, (name, x) in zip(gradients, leaves.items(), strict=True)
    }


_NO_DERIVATIVE = re.compile(
    r"not implemented|no autograd formula|derivative for|backward (pass )?(is )?not|not support(ed)? backward"
    r"|does not require grad|NYI|not differentiable|forward[- ]only|inference",
    re.I,
)


def run_backward(session: CheckSession, question: Question) -> tuple[str, str]:
    """Run the code on inputs that require gradients, then its backward pass.

    Returns why it has no backward pass, and need not have one; and the error that its backward pass raises.
    Either is "" where nothing is amiss.
    """
    tracked = question.tracked(session.dtype)
    reply = session.subject.run(tracked)
    if reply.answer is None:  # it ran on inputs without gradients
        return f"inputs that require gradients raise {reply.error_line}", ""
    output = reply.answer.output
    if not output.requires_grad:
        return _why_untracked(session, question), ""
    try:
        leaf_gradients(output.sum(), [tracked.q])
    except Exception as error:  # what the author's backward pass raises can be of any kind
        line = Reply(None, error).error_line
        is_missing = isinstance(error, NotImplementedError) or _NO_DERIVATIVE.search(line)
        return (line, "") if is_missing else ("", line)
    return "", ""


def leaf_gradients(total: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """Return the gradients of a number by some leaves; None where none flows.

    torch.utils.checkpoint(use_reentrant=True) refuses torch.autograd.grad, and gives them by `.backward()`.
    """
    try:
        return list(torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True))
    except RuntimeError as error:
        for leaf in leaves:
            leaf.grad = None
        try:
            total.backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise error from None
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return gradients


def _why_untracked(session: CheckSession, question: Question) -> str:
    """Return why an output does not require gradients; "" if only a detach explains it."""
    if session.module is None:
        return "its output has no gradient at all, so it is for inference only"
    layout = session.subject.kernel_layout
    if layout is not None and layout.kind in CACHED_LAYOUTS:
        return "it reads from a cache, and its output does not require gradients"
    with FollowInputs() as followed:
        question = question.to(session.dtype).map_inputs(torch.clone)
        followed.add(question.q, question.k, question.v)
        reply = session.subject.run(question)
    if reply.answer is None or followed.reaches(reply.answer.output):
        return ""
    return "its output is not made by operators of PyTorch that have a derivative"


# Step² and 1e-16/step, the two errors of a central difference, are both below 1e-9 with this step.
_STEP, _LIMIT = 1e-5, 1e-5


def probe_derivatives(session: CheckSession) -> None:
    """Compare the derivative along random directions with central differences, in float64."""
    if session.dtype != torch.float64:
        session.add_skip("gradients", "they can be compared with differences only in float64")
        return
    question = session.cases.plain("gradients", seed=21)
    measured = derivative_error(session.subject.run, question, directions=3)
    if isinstance(measured, str):
        session.add_skip("gradients", measured)
        return
    worst, is_right = measured
    if is_right:
        session.add_pass("gradients", f"equal to differences of outputs, to {worst:.0e}")
        return
    detail = f"they differ from the differences of outputs by {worst:.1g}"
    evidence = (
        "The output changes with the scores, but its gradient does not say so: it differs by "
        f"{worst:.1g} from the differences of outputs."
    )
    session.add_mistake("gradients", detail, "weights-detached", evidence)


def derivative_error(
    run: Callable[[Question], Reply], question: Question, directions: int = 1
) -> tuple[float, bool] | str:
    """Return how far derivatives are from differences of outputs, and whether they agree; text if unknown.

    `run` must give the same output each time, in float64.
    """
    worst, doubt = 0.0, 0.0
    for seed in range(directions):
        found = _derivatives(run, question, seed)
        if isinstance(found, str):
            return found
        analytic, (near, *others) = found
        # The relative error of a derivative near 0 would be one of rounding.
        worst = max(worst, abs(analytic - near) / max(abs(near), 1e-3))
        doubt = max(doubt, *(abs(far - near) / max(abs(near), 1e-3) for far in others))
    # Code that rounds to float32 on its way, or adds −1e12 to scores, leaves some doubt.
    return worst, worst < max(_LIMIT, 10 * doubt)


def _derivatives(
    run: Callable[[Question], Reply], question: Question, seed: int
) -> tuple[float, list[float]] | str:
    """Return autograd's derivative along a random direction and those by differences, or a reason.

    These are of one step, of twice and of a hundred times that step; how they differ says how well they are
    known.
    """
    draw = torch.Generator().manual_seed(seed)
    inputs = question.leaves()
    # By identity: in self-attention one tensor has three roles and must move as one.
    directions = {id(x): torch.randn(x.shape, generator=draw, dtype=x.dtype) for x in inputs}
    tracked = {id(x): x.clone().requires_grad_() for x in inputs}
    reply = run(question.map_inputs(lambda x: tracked[id(x)]))
    if reply.answer is None or not reply.answer.output.requires_grad:
        return "its output has no gradient" if reply.answer is not None else reply.error_line
    weights = torch.randn(reply.answer.output.shape, generator=draw, dtype=torch.float64)
    total = (reply.answer.output * weights).sum()
    gradients = leaf_gradients(total, list(tracked.values()))
    analytic = sum(
        float((g * directions[key]).sum()) for key, g in zip(tracked, gradients, strict=True) if g is not None
    )
    differences = []
    for step in (_STEP, 2 * _STEP, 100 * _STEP):
        sums = []
        for s in (step, -step):
            moved = run(question.map_inputs(lambda x, s=s: x + s * directions[id(x)]))  # type: ignore[misc]
            if moved.answer is None:
                return moved.error_line
            sums.append(float((moved.answer.output.detach() * weights).sum()))
        differences.append((sums[0] - sums[1]) / (2 * step))
    return analytic, differences
