"""Attention with a backward pass written by hand: one that runs, one that fails, and one that is missing."""

import torch
import torch.nn.functional as F

from tests.checker.corpus import Entry


def gradients(inputs, gradient, **options):
    """The gradients of attention, which PyTorch computes when they are asked for."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        output = F.scaled_dot_product_attention(*inputs, **options)
    return torch.autograd.grad(output, inputs, gradient)


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)

    @staticmethod
    def backward(ctx, gradient):
        return gradients(ctx.saved_tensors, gradient)


class WrongShape(Right):
    @staticmethod
    def backward(ctx, gradient):
        return gradient[..., :1], None, None


class Misspelt(Right):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.permuted(0, 2, 1, 3), None, None


class Refused(Right):
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("dq: expected contiguous rows")


class NotWritten(Right):
    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError


class Once(Right):
    """Its backward pass runs once for each forward pass."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.inputs = q, k, v
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    @staticmethod
    def backward(ctx, gradient):
        inputs = ctx.inputs
        del ctx.inputs
        return gradients(inputs, gradient, is_causal=True)


def attention(function):
    return lambda q, k, v: function.apply(q, k, v)


def failing(name, function, error):
    why = f"the output is right, but its backward pass raises {error}"
    return Entry(name, attention(function), verdict="wrong", why=why)


ENTRIES = [
    Entry("by hand", attention(Right)),
    Entry("not written", attention(NotWritten)),
    Entry("once", attention(Once), {"causal": True}),
    failing("of another shape", WrongShape, "RuntimeError"),
    failing("misspelt", Misspelt, "AttributeError"),
    failing("refused", Refused, "ValueError: dq"),
]
