"""Chooses the backend that runs a problem, and runs it.

Each backend has a function `run(problem)`, and those that do not serve every problem one that says why,
`unsupported_reason(problem)`. The first backend that supports the call runs it. Only `steps` builds the T×S
matrix, and only where no other backend can serve.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch
from torch import Tensor

from regard.attention.backends import fused_attention, tiled_attention
from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.triton import launch
from regard.attention.inputs import working_dtype
from regard.attention.steps import trace

BACKENDS = ("torch", "triton", "tiled", "steps")
"""The backends by name, in the order in which `"auto"` tries them."""

forced_backend: ContextVar[str] = ContextVar("backend", default="auto")
"""The backend that `with regard.attention.backend(…)` names."""


def choose(problem: AttentionProblem, name: str) -> str:
    """The backend that runs a problem: the one called `name`, or for "auto" the first that supports it."""
    name = check_name(forced_name() if name == "auto" else name)
    if name == "auto":
        return next(candidate for candidate in BACKENDS if unsupported_reason(problem, candidate) is None)
    if (reason := unsupported_reason(problem, name)) is not None:
        raise ValueError(f"backend: {name!r} cannot serve this: {reason}; backend='auto' finds one that can")
    return name


def forced_name() -> str:
    """The backend of `with regard.attention.backend(…)`; a compiled function keeps that of its first call."""
    return forced_backend.get()


# This is what `@torch.compiler.assume_constant_result` does. The decorator itself imports torch._dynamo,
# which takes as long as the rest of PyTorch.
forced_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_name(name: str) -> str:
    """Return the name of a backend, or raise ValueError."""
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"backend: expected one of 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return name


def unsupported_reason(problem: AttentionProblem, name: str) -> str | None:
    """Why a backend cannot run a problem, in a phrase, or None if it can."""
    # The steps serve every call, also those that the questions below refuse.
    if name == "steps":
        return None
    if 0 in problem.matrix:
        return "there is nothing to attend to"
    if problem.bias_needs_grad:
        return "the bias needs a gradient"
    # Kernels and tiles read the mask's values; the steps are PyTorch operations, which give shapes there.
    if problem.q.is_meta:
        return "the meta device has no values"
    # Custom autograd functions and private kernels have no rule for vmap; the operations of the steps have.
    if problem.transformed:
        return "it runs inside a transformation of torch.func"
    # The tiles serve every other one.
    if name == "tiled":
        return None
    if name == "torch":
        return fused_attention.unsupported_reason(problem)
    return launch.unsupported_reason(problem)


def run(problem: AttentionProblem, name: str, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The output (B, H, T, E), and the row log-sum-exp (B, H, T) if `return_lse`, by the backend `name`."""
    if name == "torch":
        return fused_attention.run(problem, return_lse)
    if name == "steps":
        return _run_steps(problem, return_lse)
    output, lse = (tiled_attention if name == "tiled" else launch).run(problem)
    return output, lse if return_lse else None


def _run_steps(p: AttentionProblem, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    steps = trace(p.q, p.k, p.v, p.mask, scale=p.scale, softcap=p.softcap, sinks=p.sinks, dropout=p.dropout)
    if not return_lse:
        return steps.output, None
    # Detached: PyTorch's kernels give a lse without a gradient as well, and all backends agree.
    lse = steps.masked.detach().logsumexp(-1)  # (B, H, T)
    lse = lse.masked_fill(lse == torch.inf, torch.nan)  # softmax makes NaN of a row with a score of +inf
    if p.sinks is not None:
        lse = torch.logaddexp(lse, p.sinks.detach().to(working_dtype(p.q.dtype)).view(-1, 1))
    return steps.output, lse
