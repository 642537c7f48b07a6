"""`attend`: attention on the fastest backend that supports the call; `which_backend` says which one that is.

Each backend has two functions: `unsupported_reason(problem)` and `run(problem)`. The first backend that
supports the call runs it. Only `steps` builds the T×S matrix, and only where no other backend can serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from regard.attention.arguments import answer_pytorch_arguments
from regard.attention.backends import fused_attention, tiled_attention
from regard.attention.backends.problem import AttentionProblem, prepare
from regard.attention.backends.triton import launch
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.steps import trace
from regard.cell_output import text_output

BACKENDS = ("torch", "triton", "tiled", "steps")
"""The backends by name, in the order in which `"auto"` tries them."""

_forced: ContextVar[str] = ContextVar("backend", default="auto")


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    return_lse: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    return_lse: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@answer_pytorch_arguments
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Fused attention of q (B, H, T, D) on k (B, G, S, D) and v (B, G, S, E). It stores no T×S matrix.

    - `mask`: a mask such as `regard.causal`, or a tensor that broadcasts to (B, H, T, S): True is visible,
      floats are added to the scores. The last query is aligned with the last key.
    - `scale` multiplies the scores; D ** -0.5 if None.
    - `softcap` bounds the scores by softcap · tanh(score / softcap).
    - `sinks` (H,): one more logit for every head, which takes its share of the softmax and has no value.
    - `dropout`: the probability with which a weight is dropped.
    - `return_lse`: also return the row log-sum-exp (B, H, T): natural logarithm, float32 (float64 for
      float64), without gradient.
    - `backend`: one of "auto", "torch", "triton", "tiled", "steps"; `regard.which_backend` tells what "auto"
      uses.

    Returns the output (B, H, T, E), or the pair (output, lse). A query that sees no key has zeros and an lse
    of −inf; NaN in a key that no query sees does not reach the output.

    >>> import torch, regard
    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> regard.attend(q, k, v, mask=regard.causal & regard.window(3)).shape
    torch.Size([1, 2, 5, 8])
    """
    problem = prepare(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
    output, lse = _run(problem, _choose(problem, backend), return_lse)
    if q.ndim != 4:
        output = output.reshape(*q.shape[:-1], v.shape[-1])
        lse = None if lse is None else lse.reshape(q.shape[:-1])
    return output if lse is None else (output, lse)


class Explanation(NamedTuple):
    """The backend that runs a call, and why the others do not."""

    backend: str
    refusals: dict[str, str]
    """For each backend that cannot run the call, the reason."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a line for each backend."""
        return text_output(str(self))

    def __str__(self) -> str:
        lines = [f"{name}: no, {reason}" for name, reason in self.refusals.items()]
        slower = [name for name in BACKENDS if name != self.backend and name not in self.refusals]
        return "\n".join(
            [*lines, f"{self.backend}: taken", *(f"{name}: could serve, slower" for name in slower)]
        )


def which_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> Explanation:
    """The backend that `attend` uses for these arguments, and why not a faster one.

    q, k, v, `mask`, `scale`, `softcap`, `sinks` and `dropout` are as in `attend`.

    >>> import torch, regard
    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> print(regard.which_backend(q, k, v, softcap=30.0))
    torch: no, its kernels have no softcap
    triton: no, needs a CUDA device, not cpu
    tiled: taken
    steps: could serve, slower
    """
    problem = prepare(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
    reasons = {name: why for name in BACKENDS if (why := _unsupported_reason(problem, name)) is not None}
    return Explanation(_choose(problem, "auto"), reasons)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force every `attend` inside the block onto the backend `name`: `with regard.backend("tiled"): …`."""
    token = _forced.set(_check_name(name))
    try:
        yield
    finally:
        _forced.reset(token)


def _choose(problem: AttentionProblem, name: str) -> str:
    name = _check_name(_forced_name() if name == "auto" else name)
    if name == "auto":
        return next(candidate for candidate in BACKENDS if _unsupported_reason(problem, candidate) is None)
    if (reason := _unsupported_reason(problem, name)) is not None:
        raise ValueError(f"backend: {name!r} cannot serve this: {reason}; backend='auto' finds one that can")
    return name


def _forced_name() -> str:
    """The backend that `with regard.backend(…)` names; a compiled function keeps that of its first call."""
    return _forced.get()


# This is what `@torch.compiler.assume_constant_result` does. The decorator itself imports torch._dynamo,
# which takes as long as the rest of PyTorch.
_forced_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check_name(name: str) -> str:
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"backend: expected one of 'auto', {', '.join(map(repr, BACKENDS))}, got {name!r}")
    return name


def _unsupported_reason(problem: AttentionProblem, name: str) -> str | None:
    if name == "steps":
        return None
    if 0 in problem.matrix:
        return "there is nothing to attend to"
    if problem.bias_needs_grad:
        return "the bias needs a gradient"
    if problem.q.is_meta:
        return "the meta device has no values"
    if problem.transformed:
        return "it runs inside a transformation of torch.func"
    module = fused_attention if name == "torch" else launch if name == "triton" else tiled_attention
    reason: str | None = module.unsupported_reason(problem)
    return reason


def _run(problem: AttentionProblem, name: str, return_lse: bool) -> tuple[Tensor, Tensor | None]:
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
    lse = steps.masked.detach().logsumexp(-1)  # (B, H, T)
    lse = lse.masked_fill(lse == torch.inf, torch.nan)  # softmax makes NaN of a row with a score of +inf
    if p.sinks is not None:
        lse = torch.logaddexp(lse, p.sinks.detach().to(working_dtype(p.q.dtype)).view(-1, 1))
    return steps.output, lse
