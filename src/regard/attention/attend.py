"""`attend`: attention on the fastest backend that supports the call; `which_backend` says which one that is.

With `group=` the sequence is spread over several processes, which is in `context_parallel`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.arguments import unknown_argument
from regard.attention.backends.choice import (
    BACKENDS,
    check_name,
    choose,
    forced_backend,
    unsupported_reason,
)
from regard.attention.backends.plan import attend_by_plan
from regard.attention.backends.problem import prepare
from regard.attention.context_parallel.ring import ring_attend
from regard.attention.context_parallel.rows import Order
from regard.attention.masks.base import Mask
from regard.support.cell_output import text_output


class AttendOptions(TypedDict, total=False):
    """The options of `attend`, which describes them, but for `return_lse`."""

    mask: Mask | Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    backend: str
    group: Any
    order: Order


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **options: Unpack[AttendOptions]
) -> Tensor: ...


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[AttendOptions]
) -> tuple[Tensor, Tensor]: ...


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
    group: Any = None,
    order: Order = "contiguous",
    **unknown: Any,
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
    - `group`: a process group of `torch.distributed`, or a `DeviceMesh` of one dimension, over which the
      sequence is spread: ring attention. q, k and v are then this rank's rows, `mask` is that of the whole
      sequence, and every rank of the group makes the call. The result is this rank's; it has gradients, but
      there is no dropout.
    - `order`: with `group`, which rows this rank has: "contiguous", those after the rank before, or
      "head-tail", which balances a causal mask; `regard.attention.ring_positions` gives their positions.

    Returns the output (B, H, T, E), or the pair (output, lse). A query that sees no key has zeros and an lse
    of −inf; NaN in a key that no query sees does not reach the output.

    >>> import torch, regard
    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> regard.attend(q, k, v, mask=regard.causal & regard.window(3)).shape
    torch.Size([1, 2, 5, 8])
    """
    if unknown:  # taken here, since a decorator would cost every call two microseconds
        raise unknown_argument(attend, next(iter(unknown)))
    if group is not None:
        whole = ring_attend(
            q, k, v, group=group, order=order, backend=backend,
            mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout,
        )  # fmt: skip
        return whole if return_lse else whole[0]
    call = q, k, v, mask, scale, softcap, sinks, dropout, backend
    compute = attend_by_plan
    if is_compiling():
        from regard.attention import operator  # loaded here, since only compiled calls need it

        compute = operator.choose_form(call)
    output, lse = compute(call, return_lse)
    return output if lse is None else (output, lse)


# `unknown` is there for its error alone: help(), editors and the reference must not show it.
_signature = inspect.signature(attend)
attend.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=[each for name, each in _signature.parameters.items() if name != "unknown"]
)


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
    reasons = {name: why for name in BACKENDS if (why := unsupported_reason(problem, name)) is not None}
    return Explanation(choose(problem, "auto"), reasons)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force every `attend` inside the block onto a backend: `with regard.attention.backend("tiled"): …`."""
    token = forced_backend.set(check_name(name))
    try:
        yield
    finally:
        forced_backend.reset(token)
