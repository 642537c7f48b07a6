"""Attention under a mask as one operator, for `torch.compile`: the compiler sees shapes and nothing inside.

Which tiles a mask shows depends on numbers that a compiler cannot trace. The operator takes the structure of
the mask as text, and its numbers and tensors as inputs, so that a compiled function follows all of them. Its
backward pass runs the forward pass again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention.backends.choice import forced_name, run, unsupported_reason
from regard.attention.backends.plan import CallArguments, attend_anew, attend_by_plan
from regard.attention.backends.problem import prepare, with_four_dimensions
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask, full
from regard.attention.masks.description import rebuild_mask
from regard.attention.masks.named_masks import causal
from regard.support.torch_internals import current_transform


def choose_form(call: CallArguments) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that computes a call of `attend` while a compiler traces it.

    The compiler sees through PyTorch's own kernels. A mask with a function runs outside the graph, which it
    breaks.
    """
    q, k, _, mask, _, softcap, sinks, dropout, _ = call
    if isinstance(mask, Mask) and not mask.is_storable():
        return _uncompiled
    known = mask is None or mask is full or (mask is causal and q.shape[-2] == k.shape[-2])
    # The operator's backward pass runs the forward pass again, and would drop other weights.
    if (known and softcap is None and sinks is None) or dropout or _in_transformation():
        return attend_anew
    return _as_operator if mask is None or (isinstance(mask, Mask) and not mask.trainable) else attend_anew


def _in_transformation() -> bool:
    """Whether `torch.func.vmap`, `grad` or another transformation runs: the operator has no rule for them."""
    return current_transform() is not None


_in_transformation._dynamo_marked_constant = True  # type: ignore[attr-defined]
_uncompiled: Callable[..., tuple[Tensor, Tensor | None]] = torch.compiler.disable(attend_by_plan)  # type: ignore[no-untyped-call]


def _as_operator(call: CallArguments, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """`attend_by_plan` without dropout as one operator."""
    q, k, v, mask, scale, softcap, sinks, _, backend = call
    numbers: list[int] = []
    tensors: list[Tensor] = []
    text = _write(full if mask is None else mask, numbers, tensors)
    backend = forced_name() if backend == "auto" else backend
    output, lse = _attention(q, k, v, sinks, tensors, numbers, text, scale, softcap, backend, return_lse)
    return output, lse.detach() if return_lse else None


def _write(mask: Mask, numbers: list[int], tensors: list[Tensor]) -> str:
    """The description of a mask as JSON; its numbers and tensors are added to the lists, which it counts."""
    fields = [f'"kind": "{type(mask).__name__}"']
    for field in dataclasses.fields(mask):  # type: ignore[arg-type]
        value = getattr(mask, field.name)
        if isinstance(value, Mask):
            text = _write(value, numbers, tensors)
        elif isinstance(value, Tensor):
            text = f'{{"tensor": "{len(tensors)}"}}'
            tensors.append(value)
        elif value is None or isinstance(value, bool):
            text = "null" if value is None else "true" if value else "false"
        else:
            text = f'{{"number": {len(numbers)}}}'
            numbers.append(value)
        fields.append(f'"{field.name}": {text}')
    return "{" + ", ".join(fields) + "}"


def _read(text: str, numbers: list[int], tensors: list[Tensor]) -> Mask:

    def fill(value: dict[str, Any]) -> Any:
        return numbers[value["number"]] if "number" in value else value

    description = json.loads(text, object_hook=fill)
    return rebuild_mask(description, {str(i): tensor for i, tensor in enumerate(tensors)})


# The schemas are written out because PyTorch 2.6 cannot read `list[Tensor]` from a signature.
_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor[] tensors"
_NUMBERS = "int[] numbers, str text, float? scale, float? softcap"
_FORWARD = f"({_TENSORS}, {_NUMBERS}, str backend, bool return_lse) -> (Tensor, Tensor)"
_BACKWARD = f"(Tensor grad, {_TENSORS}, {_NUMBERS}) -> Tensor[]"


@torch.library.custom_op("regard::attention", mutates_args=(), schema=_FORWARD)
def _attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output, and the row log-sum-exp, which is an empty tensor unless `return_lse`."""
    q, k, v, sinks, tensors, numbers, text, scale, softcap, backend, return_lse = arguments
    mask = _read(text, numbers, tensors)
    output, lse = attend_by_plan((q, k, v, mask, scale, softcap, sinks, 0.0, backend), return_lse)
    lse = q.new_empty(0, dtype=working_dtype(q.dtype)) if lse is None else lse
    # A fake tensor promises contiguous results, and the real ones must keep the promise.
    return output.contiguous(), lse.contiguous()


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return_lse = others[-1]
    lse = q.new_empty(q.shape[:-1] if return_lse else 0, dtype=working_dtype(q.dtype))
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype), lse


@torch.library.custom_op("regard::attention_backward", mutates_args=(), schema=_BACKWARD)
def _attention_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of q, k, v and, if there are some, the sinks.

    Inside an operator PyTorch records no gradients of its own kernels, only of these two backends.
    """
    grad, q, k, v, sinks, tensors, numbers, text, scale, softcap = arguments
    four = with_four_dimensions(q, k, v)
    inputs = [x.detach().requires_grad_() for x in (*four, sinks) if x is not None]
    own_sinks = None if sinks is None else inputs[3]
    with torch.enable_grad():
        mask = _read(text, numbers, tensors)
        problem = prepare(*inputs[:3], mask=mask, scale=scale, softcap=softcap, sinks=own_sinks)
        backend = "tiled" if unsupported_reason(problem, "triton") else "triton"
        output, _ = run(problem, backend, False)
    found = torch.autograd.grad(output, inputs, grad.reshape(output.shape))
    shapes = [x.shape for x in (q, k, v, sinks) if x is not None]
    return [x.reshape(shape).contiguous() for x, shape in zip(found, shapes, strict=True)]


@_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *others: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (q, k, v, sinks) if x is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, sinks, tensors, *ctx.numbers_text_scale_softcap, _, _ = inputs
    ctx.save_for_backward(q, k, v, sinks, *tensors)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, sinks, *tensors = ctx.saved_tensors
    found = _attention_backward(grad, q, k, v, sinks, tensors, *ctx.numbers_text_scale_softcap)
    # PyTorch takes an empty list of numbers for one of tensors.
    of_numbers: list[None] | None = None if ctx.numbers_text_scale_softcap[0] else []
    of_sinks = None if sinks is None else found[3]
    return *found[:3], of_sinks, [None] * len(tensors), of_numbers, *[None] * 5


_attention.register_autograd(_backward, setup_context=_save)
