"""Plans: what is decided about a call of `attend` before a number is computed, cached for calls like it.

A plan belongs to the shapes, strides, dtypes and devices of the tensors, the mask, the numbers, the backend
asked for and the settings of PyTorch that its choice of a kernel depends on. One query over a cache has the
same plan for any number of keys. It holds no tensor of a call. It is cached once the call was checked: a
wrong call is answered anew every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.attention.backends import fused_attention
from regard.attention.backends.choice import choose, forced_backend, run
from regard.attention.backends.problem import AttentionProblem, prepare, with_four_dimensions
from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal
from regard.support.torch_internals import (
    cudnn_sdp_enabled,
    current_transform,
    deterministic_algorithms,
    dispatch_mode_count,
    efficient_sdp_enabled,
    flash_sdp_enabled,
    function_mode_count,
    sdp_priority_order,
    tracing_state,
)

MAXSIZE = 512
"""How many plans are cached; then the oldest ones go. A step of decoding makes one for each kind of layer."""

# A subclass of Tensor may override every operation by __torch_function__.
PLAIN = frozenset({Tensor, Parameter})  # types that compute as PyTorch does

# Each call of `attend` asks this: a name is found faster than an attribute.
_forced_backend = forced_backend.get


class Plan(NamedTuple):
    """The decisions about calls that are alike."""

    mask: Mask  # simplified for these sizes
    scale: float
    backend: str
    kernel: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Computes the output of q, k and v as they come, if one call of PyTorch does that."""


_plans: dict[tuple[Any, ...], Plan] = {}

# A plain tuple: a NamedTuple takes half a microsecond to make, and this one is made for every call.
CallArguments = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]
"""What a call of `attend` was given: q, k, v, mask, scale, softcap, sinks, dropout and backend."""


def attend_by_plan(call: CallArguments, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """What `attend` returns, uncompiled, for a call; the row log-sum-exp if `return_lse`."""
    plan, key = find_plan(call)
    if plan is None:
        return attend_anew(call, return_lse, key)
    q, k, v, _, _, softcap, _, dropout, _ = call
    if plan.kernel is not None and not return_lse:
        return plan.kernel(q, k, v), None
    problem = AttentionProblem(*with_four_dimensions(q, k, v), plan.mask, plan.scale, softcap, None, dropout)
    return _run(problem, plan, q, v, return_lse)


def attend_anew(
    call: CallArguments, return_lse: bool, key: tuple[Any, ...] | None = None
) -> tuple[Tensor, Tensor | None]:
    """`attend_by_plan` of a call without a plan: check it, choose its backend, and cache both under `key`.

    Under a mode nothing is cached, since there the questions about a kernel may have other answers.
    """
    if key is not None and (function_mode_count() or dispatch_mode_count()):
        key = None
    q, k, v, mask, scale, softcap, sinks, dropout, backend = call
    problem = prepare(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
    name = choose(problem, backend)
    bound = name == "torch" and key is not None and q.ndim == 4
    plan = Plan(problem.mask, problem.scale, name, fused_attention.bind(problem) if bound else None)
    # On other devices the environment decides whether Triton interprets, and a plan must not outlive that.
    if key is not None and (name == "torch" or q.is_cuda):
        _store(key, plan)
    return _run(problem, plan, q, v, return_lse)


def _run(
    problem: AttentionProblem, plan: Plan, q: Tensor, v: Tensor, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The output and the lse by a plan's backend, in the dimensions of q."""
    output, lse = run(problem, plan.backend, return_lse)
    if q.ndim != 4:
        output = output.reshape(*q.shape[:-1], v.shape[-1])
        lse = None if lse is None else lse.reshape(q.shape[:-1])
    return output, lse


def find_plan(call: CallArguments) -> tuple[Plan | None, tuple[Any, ...] | None]:
    """The cached plan of calls like this one, or None, and the key of such calls, None if they have no plan.

    Types are compared exactly, since 1 == True as a key but not as an argument. Tensors in a mask may change,
    and transformations give operations another meaning.
    """
    q, k, v, mask, scale, softcap, sinks, dropout, backend = call
    if (
        sinks is not None
        or not (mask is None or (isinstance(mask, Mask) and mask.positional))
        or not (scale is None or type(scale) is float)
        or not (softcap is None or type(softcap) is float)
        or type(dropout) is not float
        or type(backend) is not str
        or not (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN)
        or forward_ad._current_level >= 0
        or current_transform() is not None
        or tracing_state() is not None
    ):
        return None, None
    needs_grad = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    # Such a call is an error, which `prepare` words; a plan would skip its check.
    if needs_grad and (q.is_inference() or k.is_inference() or v.is_inference()):
        return None, None
    try:
        dtype, device = q.dtype, q.device
        if not (k.dtype is dtype is v.dtype and k.device == device == v.device):
            return None, None
        shape, k_shape, v_shape = q.shape, k.shape, v.shape
        others = (
            q.stride(), dtype, device, scale, softcap, dropout, backend, _forced_backend(), needs_grad,
            flash_sdp_enabled() if q.is_cpu else _settings(),
        )  # fmt: skip
        key: tuple[Any, ...]
        if shape[-2] == 1 and (mask is None or mask is causal) and 1 < k_shape[-2] == v_shape[-2]:
            # One query that sees every key: a cache has another length at each step, and if it is
            # concatenated anew also other strides.
            widths = k_shape[-1], v_shape[-1], k.stride(-1), v.stride(-1)
            key = shape, k_shape[:-2], v_shape[:-2], widths, others
        else:
            # The hash of a mask takes a microsecond.
            key = (shape, k_shape, v_shape, k.stride(), v.stride()), mask is causal or mask, others
        return _plans.get(key), key
    except (RuntimeError, IndexError):  # a sparse tensor has no strides, a nested one no shape, a number none
        return None, None


def _store(key: tuple[Any, ...], plan: Plan) -> None:
    # A dict keeps the order of insertion, so that the first are the oldest.
    if len(_plans) >= MAXSIZE:
        for old in list(_plans)[: MAXSIZE // 8]:
            _plans.pop(old, None)  # another thread may have been faster
    _plans[key] = plan


def _settings() -> tuple[Any, ...]:
    """The settings of PyTorch that its choice of a kernel for a GPU depends on."""
    enabled = flash_sdp_enabled(), efficient_sdp_enabled(), cudnn_sdp_enabled()
    return enabled, deterministic_algorithms(), *sdp_priority_order()
