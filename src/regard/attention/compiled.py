"""Attention under a mask as one operator, for `torch.compile`: the compiler sees shapes and nothing inside.

Which tiles a mask shows depends on numbers that a compiler cannot trace. The operator takes the structure of
the mask as text, and its numbers and tensors as inputs, so that a compiled function follows all of them. Its
backward pass runs the forward pass again.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from regard.attention.backends.choice import choose, run
from regard.attention.backends.problem import prepare
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask, full
from regard.attention.masks.description import rebuild_mask
from regard.attention.masks.named_masks import causal


def needs_operator(mask: object, T: int, S: int, dropout: float) -> bool:
    """Whether a compiler sees through a call only if it is one operator, and the call can be one."""
    if not isinstance(mask, Mask) or mask is full or (mask is causal and T == S) or dropout:
        return False
    return mask.is_storable() and not mask.trainable


def attend_as_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The output and the row log-sum-exp of `attend`, whose arguments these are, as one operator."""
    numbers: list[int] = []
    tensors: list[Tensor] = []
    text = _write(mask, numbers, tensors)
    output, lse = _attention(q, k, v, sinks, tensors, numbers, text, scale, softcap, backend)
    return output, lse.detach()


def _write(mask: Mask, numbers: list[int], tensors: list[Tensor]) -> str:
    """The description of a mask as JSON; its numbers and tensors are added to the lists, and named by place."""
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
    """The mask that `_write` has written."""

    def fill(value: dict[str, Any]) -> Any:
        return numbers[value["number"]] if "number" in value else value

    description = json.loads(text, object_hook=fill)
    return rebuild_mask(description, {str(i): tensor for i, tensor in enumerate(tensors)})


@torch.library.custom_op("regard::attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    tensors: list[Tensor],
    numbers: list[int],
    text: str,
    scale: float | None,
    softcap: float | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    mask = _read(text, numbers, tensors)
    problem = prepare(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    output, lse = run(problem, choose(problem, backend), True)
    assert lse is not None
    return output.reshape(*q.shape[:-1], v.shape[-1]).contiguous(), lse.reshape(q.shape[:-1]).contiguous()


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    lse = q.new_empty(q.shape[:-1], dtype=working_dtype(q.dtype))
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype), lse


@torch.library.custom_op("regard::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    tensors: list[Tensor],
    numbers: list[int],
    text: str,
    scale: float | None,
    softcap: float | None,
    backend: str,
) -> list[Tensor]:
    """The gradients of q, k, v and, if there are some, the sinks."""
    mask = _read(text, numbers, tensors)
    inputs = [x.detach().requires_grad_() for x in (q, k, v, sinks) if x is not None]
    with torch.enable_grad():
        problem = prepare(
            *inputs[:3], mask=mask, scale=scale, softcap=softcap, sinks=None if sinks is None else inputs[3]
        )
        output, _ = run(problem, choose(problem, backend), False)
    found = torch.autograd.grad(output, inputs, grad.reshape(output.shape))
    return [x.contiguous() for x in found]


@_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *others: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (q, k, v, sinks) if x is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, sinks, tensors, *ctx.others = inputs
    ctx.save_for_backward(q, k, v, sinks, *tensors)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, sinks, *tensors = ctx.saved_tensors
    found = _attention_backward(grad, q, k, v, sinks, tensors, *ctx.others)
    return *found[:3], None if sinks is None else found[3], [None] * len(tensors), *[None] * 5


_attention.register_autograd(_backward, setup_context=_save)
