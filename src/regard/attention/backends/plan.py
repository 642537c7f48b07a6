"""Plans: what is decided about a call of `attend` before a number is computed, cached for calls like it.

A plan belongs to the shapes, strides, dtypes and devices of the tensors, the mask, the numbers, the backend
asked for and the settings of PyTorch that its choice of a kernel depends on. One query over a cache has the
same plan for any number of keys. It holds no tensor of a call. It is cached once the call was checked: a
wrong call is answered anew every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from regard.attention.backends import fused_attention
from regard.attention.backends.choice import choose, forced_backend, run
from regard.attention.backends.problem import AttentionProblem, prepare, with_four_dimensions
from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal
from regard.lru import LRUCache

MAXSIZE = 512
"""How many plans are cached. A step of decoding makes one for each kind of layer."""

PLAIN = frozenset({Tensor, Parameter})  # types that compute as PyTorch does

# Each call of `attend` asks all of these: a name is found faster than an attribute of an attribute.
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_transformation, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
_flash_enabled, _efficient_enabled = torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled
_cudnn_enabled, _priority_order = torch._C._get_cudnn_sdp_enabled, torch._C._get_sdp_priority_order
_deterministic = torch._C._get_deterministic_algorithms


class Plan(NamedTuple):
    """The decisions about calls that are alike."""

    mask: Mask  # simplified for these sizes
    scale: float
    backend: str
    kernel: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Computes the output of q, k and v as they come, if one call of PyTorch does that."""


_plans: LRUCache[Plan] = LRUCache(MAXSIZE)


def attend_by_plan(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    softcap: Any,
    sinks: Any,
    dropout: Any,
    backend: Any,
    return_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """What `attend` returns for these arguments, and the row log-sum-exp if `return_lse`."""
    plan, key = find_plan(q, k, v, mask, scale, softcap, sinks, dropout, backend)
    if plan is None:
        problem, plan = make_plan(
            q, k, v, backend, key, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
        )
    elif plan.kernel is not None and not return_lse:
        return plan.kernel(q, k, v), None
    else:
        problem = apply_plan(plan, q, k, v, softcap, dropout)
    output, lse = run(problem, plan.backend, return_lse)
    if q.ndim != 4:
        output = output.reshape(*q.shape[:-1], v.shape[-1])
        lse = None if lse is None else lse.reshape(q.shape[:-1])
    return output, lse


def find_plan(
    q: Any, k: Any, v: Any, mask: Any, scale: Any, softcap: Any, sinks: Any, dropout: Any, backend: Any
) -> tuple[Plan | None, tuple[Any, ...] | None]:
    """The cached plan of calls like this one, or None, and the key of such calls, None if they have no plan.

    Types are compared exactly, since 1 == True as a key but not as an argument. Tensors in a mask may change,
    and modes and transformations give operations another meaning.
    """
    if (
        is_compiling()
        or sinks is not None
        or not (mask is None or (isinstance(mask, Mask) and mask.positional))
        or not (scale is None or type(scale) is float)
        or not (softcap is None or type(softcap) is float)
        or type(dropout) is not float
        or type(backend) is not str
        or not (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN)
        or forward_ad._current_level >= 0
        or _function_modes()
        or _dispatch_modes()
        or _transformation() is not None
        or _trace() is not None
    ):
        return None, None
    needs_grad = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if needs_grad and (q.is_inference() or k.is_inference() or v.is_inference()):
        return None, None
    try:
        # A part of a torch.Size is a torch.Size, which takes longer than a part of a tuple.
        q_shape, k_shape, v_shape, k_step, v_step = (
            q.shape,
            tuple(k.shape),
            tuple(v.shape),
            k.stride(),
            v.stride(),
        )
        sizes: tuple[Any, ...] = q_shape, k_shape, v_shape, k_step, v_step
        if (mask is None or mask is causal) and q_shape[-2] == 1 < k_shape[-2] == v_shape[-2]:
            # A query that sees every key: the length of a cache is another one at each step.
            mask = None
            sizes = q_shape, k_shape[:-2], k_shape[-1], v_shape[:-2], v_shape[-1], k_step[-1], v_step[-1]
        key = (
            sizes, q.stride(), q.dtype, q.device, k.dtype, k.device, v.dtype, v.device,
            mask, scale, softcap, dropout, backend, forced_backend.get(), needs_grad,
            _flash_enabled() if q.is_cpu else _settings(),
        )  # fmt: skip
    except (RuntimeError, IndexError):  # a sparse tensor has no strides, a nested one no shape, a number none
        return None, None
    return _plans.find(key), key


def _settings() -> tuple[Any, ...]:
    """The settings of PyTorch that its choice of a kernel for a GPU depends on."""
    enabled = _flash_enabled(), _efficient_enabled(), _cudnn_enabled()
    return enabled, _deterministic(), *_priority_order()


def make_plan(
    q: Tensor, k: Tensor, v: Tensor, backend: str, key: tuple[Any, ...] | None, **settings: Any
) -> tuple[AttentionProblem, Plan]:
    """Check the arguments of `attend`, choose the backend, and cache both under `key`."""
    problem = prepare(q, k, v, **settings)
    name = choose(problem, backend)
    bound = name == "torch" and key is not None and q.ndim == 4
    plan = Plan(problem.mask, problem.scale, name, fused_attention.bind(problem) if bound else None)
    # On other devices the environment decides whether Triton interprets, and a plan must not outlive that.
    if key is not None and (name == "torch" or q.is_cuda):
        _plans.store(key, plan)
    return problem, plan


def apply_plan(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, softcap: float | None, dropout: float
) -> AttentionProblem:
    """The problem of a call that has a plan."""
    q, k, v = with_four_dimensions(q, k, v)
    return AttentionProblem(q, k, v, plan.mask, plan.scale, softcap, None, dropout)
