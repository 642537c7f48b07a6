"""Whether the code has a backward pass, and whether its derivatives are those of its outputs: no oracle.

Custom operators and kernels often have no backward pass. A detach in differentiable code is a mistake; an
operator without a derivative is not. They are told apart by following the numbers: through PyTorch's own
operators they could have been differentiated. Derivatives are compared with the difference of two outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS
from regard.checker.subject.reply import Reply
from regard.support.torch_internals import TorchDispatchMode, tree_leaves

_NO_DERIVATIVE = re.compile(
    r"not implemented|no autograd formula|derivative for|backward (pass )?(is )?not|not support(ed)? backward"
    r"|does not require grad|NYI|not differentiable|forward[- ]only|inference",
    re.I,
)

_ALLOCATES = re.compile(r"new_|(empty|zeros|ones|full|rand|randn)(_like)?$")  # no number is carried over


class BackwardPass(NamedTuple):
    """What one run of forward and backward showed, as text: "" where nothing is amiss."""

    missing: str = ""  # why the code has no backward pass, and need not have one
    failure: str = ""  # the error that its backward pass raises


def run_backward(session: CheckSession, question: Question) -> BackwardPass:
    """Run the code on inputs that require gradients, then its backward pass."""
    tracked = question.tracked(session.dtype)
    reply = session.subject.run(tracked)
    if reply.answer is None:  # it ran on inputs without gradients
        return BackwardPass(f"inputs that require gradients raise {reply.error_line}")
    output = reply.answer.output
    if not output.requires_grad:
        return BackwardPass(_why_untracked(session, question))
    try:
        leaf_gradients(output.sum(), [tracked.q])
    except Exception as error:  # what the author's backward pass raises can be of any kind
        line = Reply(None, error).error_line
        if isinstance(error, NotImplementedError) or _NO_DERIVATIVE.search(line):
            return BackwardPass(line)
        return BackwardPass(failure=line)
    return BackwardPass()


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


class FollowInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows numbers from some tensors to others through PyTorch's own operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reached: dict[int, Tensor] = {}  # by the address of its storage; the tensor keeps it alive

    def add(self, *tensors: Tensor) -> None:
        """Follow the numbers of these tensors."""
        # A storage has no public identity: data_ptr() is 0 for all that are empty.
        self._reached.update({t.untyped_storage()._cdata: t for t in tensors})

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds numbers that came from those that are followed."""
        return tensor.untyped_storage()._cdata in self._reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        # Only these private attributes give an operator's own name and schema.
        own = func.namespace in ("aten", "prims") and not _ALLOCATES.match(func._opname)
        if own and any(self.reaches(x) for x in inputs):
            changed = [args[0]] if func._schema.is_mutable and isinstance(args[0], Tensor) else []
            self.add(*(x for x in tree_leaves(result) if isinstance(x, Tensor)), *changed)
        return result


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
