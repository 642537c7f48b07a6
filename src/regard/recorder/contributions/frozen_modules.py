"""Modules of the residual path as linear maps: norms with their scale frozen, activations with their ratio.

A norm divides by a number that depends on its input. With this number held at the value that it had in the
run, the norm is a linear map, and what was added to the residual stream can be followed through it. Here a
module is recognised by its numbers, not by its class: its output is scale · (x − mean) · weight + bias.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.inputs import working_dtype
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.contributions.output_projection import LinearWeights

ROWS = 16  # rows on which the forms of a norm are compared
BIASES = ("bias", "beta", "b")


class FrozenMap(NamedTuple):
    """A map x → scale · (x − mean of x, or x) · weight + bias, with the scale of each row held fixed."""

    scale: Tensor  # (…, 1); or (…, d), one for each entry
    weight: Tensor | None  # (d,)
    is_centred: bool
    bias: Tensor | None  # (d,)
    eps: float = 0.0  # the unit of rounding of what it computed in

    def transposed(self, gradient: Tensor) -> Tensor:
        """The gradient of the input, for the gradient (…, d) of the output."""
        x = gradient.to(self.scale.dtype) * self.scale
        if self.weight is not None:
            x = x * self.weight.to(x.dtype)
        if self.is_centred:
            x = x - x.mean(-1, keepdim=True)
        return x.to(gradient.dtype)


class _Path(torch.autograd.Function):
    """A module's own output, bit for bit, with the backward pass of a fixed linear map, if it has any."""

    @staticmethod
    def forward(
        ctx: Any,
        variable: Tensor,
        x: Tensor | None,
        frozen: FrozenMap | LinearWeights | None,
        output: tuple[Tensor],
    ) -> Tensor:
        ctx.frozen = frozen
        return output[0]  # in a tuple, so that autograd does not take it for an input

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return gradient, None if ctx.frozen is None else ctx.frozen.transposed(gradient), None, None


def gradient_variable(x: Tensor) -> Tensor:
    """A variable of the shape of x that takes a gradient and next to no memory."""
    return x.new_zeros(()).expand(x.shape).requires_grad_()


def tracked(
    output: Tensor, variable: Tensor, x: Tensor | None = None, frozen: FrozenMap | LinearWeights | None = None
) -> Tensor:
    """A module's own `output`, whose gradient goes to `variable`, and to its input x through a frozen map.

    Without an input it is a start of the residual path.
    """
    result: Tensor = _Path.apply(variable, x, frozen, (output.detach(),))  # type: ignore[no-untyped-call]
    return result


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm by its class's name, or by having vectors for all its parameters."""
    if any(True for _ in module.children()):
        return False
    dimensions = {x.ndim for x in module.parameters()}
    return "norm" in type(module).__name__.lower() or dimensions == {1}


def recognise_norm(module: nn.Module, x: Tensor, output: Tensor) -> FrozenMap | None:
    """Return the frozen map of a norm from its input and output (…, d), or None if it has another form."""
    if x.shape != output.shape or not x.is_floating_point():
        return None
    d = x.shape[-1]
    vectors = {name: p.detach() for name, p in module.named_parameters() if p.shape == (d,)}
    bias = next((p for name, p in vectors.items() if name in BIASES), None)
    weights: list[Tensor | None] = [None]
    for name, p in vectors.items():
        if name not in BIASES:
            weights += [p, 1.0 + p.to(working_dtype(p.dtype))]  # Gemma's norms multiply by 1 + weight
    dtype = torch.promote_types(working_dtype(x.dtype), working_dtype(output.dtype))
    rows = sampled_rows(x.numel() // d, ROWS, x.device)
    some_x, some_output = (t.reshape(-1, d)[rows].to(dtype) for t in (x, output))
    best, smallest = None, torch.inf
    for weight, is_centred in itertools.product(weights, (False, True)):
        scale, error = _fitted_scale(some_x, some_output, weight, is_centred, bias)
        if error < smallest:
            best, smallest = (weight, is_centred), error
    # The norms of Llama and Gemma (transformers 5) compute in float32 in a model of float64, too.
    precisions = sorted({torch.finfo(torch.float32).eps, max(torch.finfo(t.dtype).eps for t in (x, output))})
    eps = next((eps for eps in precisions if smallest <= 8.0 * eps), None)
    if best is None or eps is None:
        return None
    scale, _ = _fitted_scale(x.to(dtype), output.to(dtype), *best, bias)
    return FrozenMap(scale, *best, bias, eps)


def _fitted_scale(
    x: Tensor, output: Tensor, weight: Tensor | None, is_centred: bool, bias: Tensor | None
) -> tuple[Tensor, float]:
    """Return the scale (…, 1) with which a form fits each row best, and the largest relative error."""
    if is_centred:
        x = x - x.mean(-1, keepdim=True)
    if weight is not None:
        x = x * weight.to(x.dtype)
    target = output if bias is None else output - bias.to(x.dtype)
    square = (x * x).sum(-1, keepdim=True)
    scale = torch.where(square > 0, (target * x).sum(-1, keepdim=True) / square, 0.0)
    error = (target - scale * x).abs().amax(-1)
    size = torch.maximum(output.abs().amax(-1), target.abs().amax(-1))
    return scale, float((error / size.clamp_min(torch.finfo(x.dtype).tiny)).nan_to_num(torch.inf).amax())


def frozen_activation(x: Tensor, output: Tensor) -> FrozenMap:
    """Return an elementwise function as a multiplication by its ratio f(x) / x, held fixed."""
    dtype = working_dtype(x.dtype)
    wide = x.to(dtype)
    ratio = torch.where(wide != 0, output.to(dtype) / wide, 0.0)
    return FrozenMap(ratio, None, False, None)
