"""Gradients without an oracle: autograd's derivative of the code against the difference of two outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.checker.oracle.question import Question
from regard.checker.probes.number_comparison.backward import leaf_gradients
from regard.checker.session import CheckSession
from regard.checker.subject.reply import Reply

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
