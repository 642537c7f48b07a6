"""Reads the weight and the bias of a linear module, whichever way round its class stores them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from regard.recorder.map_preparation import write_count


class LinearWeights(NamedTuple):
    """A linear map: output = input · weightᵀ + bias. The tensors are the module's own, not copies."""

    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)
    write_counts: tuple[int | None, ...]
    """How often the weight and the bias had been written to when they were read."""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> LinearWeights:
        """Refer to a weight (out, in) and a bias (out,)."""
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        return cls(weight, bias, tuple(write_count(x) for x in (weight, bias) if x is not None))

    def transposed(self, gradient: Tensor) -> Tensor:
        """The gradient of the input, for the gradient (…, out) of the output."""
        return gradient @ self.weight.to(gradient.dtype)

    def check_unchanged(self) -> None:
        """Raise a ValueError if the weights were written to since the model ran, as by training."""
        if self.write_counts != tuple(write_count(x) for x in (self.weight, self.bias) if x is not None):
            raise ValueError(
                "the model's weights were written to after the capture, so that what they added is not known "
                "any more: capture again"
            )


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer: PyTorch's, or Transformers' `Conv1D`, which stores (in, out)."""
    return isinstance(module, nn.Linear) or _is_transposed(module)


def linear_weights(module: nn.Module) -> LinearWeights | None:
    """Return the weights of a linear layer, or None for any other module or for weights that are packed."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    # bitsandbytes packs weights of 4 bits into bytes, in a subclass of `nn.Linear`.
    if not is_linear(module) or not isinstance(weight, Tensor) or not weight.is_floating_point():
        return None
    if weight.ndim != 2 or not (bias is None or isinstance(bias, Tensor)):
        return None
    return LinearWeights.of(weight.mT if _is_transposed(module) else weight, bias)


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)
