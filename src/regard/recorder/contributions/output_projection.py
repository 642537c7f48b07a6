"""`OutputProjection`: the linear layer that adds up the outputs of an attention's heads; weights of any such.

A layer's heads write to the residual stream through one matrix: its output is Σ_h W_h · o_h + bias, where o_h
is the output of head h and W_h the part of the matrix that reads it. The layer is found by its input, which
has the numbers of the attention's output, and certified by its output, to which the heads' terms add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.inputs import working_dtype
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.layer import Layer
from regard.recorder.map_preparation import write_count

ROWS = 8  # rows on which inputs and outputs are compared
ROUNDING_UNITS = 8.0  # how many units of rounding a sum of products may be off, relative to its largest terms
REDUCED_PRECISION = 2.0**-10  # of products that a GPU computes in TF32


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


@dataclass(frozen=True)
class OutputProjection:
    """The linear layer through which the heads of one attention write to the residual stream."""

    name: str
    """The module's name in the model: `transformer.h.0.attn.c_proj`."""
    weights: LinearWeights
    """Its weight (d_model, H·E) and bias, which are the model's own tensors."""
    num_heads: int
    """The number H of query heads."""
    is_gated: bool
    """Whether its input is the heads' output after a gate or a norm, which count as constants."""
    difference: float
    """|Σ_h W_h · o_h + bias − output| at the entry with the largest ratio to its tolerance, on a sample."""
    tolerance: float
    """The tolerance at that entry: the rounding error to expect."""

    @property
    def certified(self) -> bool:
        """Whether the heads' terms add up to the layer's own output, to rounding."""
        return self.difference <= self.tolerance

    @property
    def bias(self) -> Tensor | None:
        """The bias (d_model,), which belongs to no head."""
        return self.weights.bias

    def head_weights(self) -> Tensor:
        """The part of the weight that reads each head, (H, d_model, E)."""
        weight = self.weights.weight
        return weight.reshape(len(weight), self.num_heads, -1).transpose(0, 1)

    def head_terms(self, merged: Tensor) -> Tensor:
        """What each head adds to the residual stream, W_h · o_h: (…, H, d_model), without the bias.

        `merged` (…, H·E) is an input of the layer: the outputs of all heads, one after the other.
        """
        heads = merged.reshape(*merged.shape[:-1], self.num_heads, -1)  # (…, H, E)
        return torch.einsum("...he,hde->...hd", heads, self.head_weights().to(heads.dtype))

    def norms_of(self, layer: Layer) -> Tensor:
        """‖W_h · v_j‖ of every key of a captured layer, (B, H, S)."""
        if self.is_gated:
            raise ValueError(
                f"layer {layer.key}: a gate multiplies what its heads add, which is then not the same for "
                "every query: seen.attribution(token).edges(layer, head) gives it for one"
            )
        return self.value_norms(recorded_values(layer), layer.heads)

    def value_norms(self, values: Tensor, heads: Sequence[int]) -> Tensor:
        """‖W_h · v_j‖ of every key j for each of the `heads`: (B, heads, S).

        `values` are (B, G, S, E), and equally many of the heads read each of the G.

        W_hᵀW_h = L·Lᵀ, so that ‖W_h · v‖ = ‖Lᵀ · v‖: L is E×E, and no (S, d_model) is computed.
        """
        self.weights.check_unchanged()
        B, G, S, _ = values.shape
        dtype, device = working_dtype(values.dtype), values.device
        weights = self.head_weights()[list(heads)].double()  # (heads, d_model, E)
        gram = weights.mT @ weights  # (heads, E, E)
        # In float64 this moves no norm by more than the rounding of float32, and makes L exist.
        jitter = 4.0 * gram.shape[-1] * torch.finfo(gram.dtype).eps * gram.diagonal(dim1=-2, dim2=-1)
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        # The part of a head that was pruned is 0, and has no factor L without it.
        gram = gram + jitter.amax(-1).clamp_min(1e-300)[:, None, None] * eye
        triangles = torch.linalg.cholesky(gram).to(device, dtype)
        norms = values.new_empty(B, len(heads), S, dtype=dtype)
        for i in range(len(heads)):
            value = values[:, i * G // len(heads)].to(dtype)  # (B, S, E)
            norms[:, i] = (value @ triangles[i]).norm(dim=-1)
        return norms


def recorded_values(layer: Layer) -> Tensor:
    """Return the values (B, G, S, E) of a captured layer; a ValueError if they were not stored."""
    if (values := layer.values) is None:
        raise ValueError(f"layer {layer.key}: its values were not stored: capture with contributions=True")
    return values


def has_same_rows(merged: Tensor, output: Tensor) -> bool:
    """Whether a tensor (…, H·E) holds the numbers of an attention's output (B, H, T, E), on sampled rows."""
    B, H, T, E = output.shape
    if merged.shape[-1] != H * E or merged.numel() != output.numel():
        return False
    rows = sampled_rows(B * T, ROWS, output.device)
    sample = output[rows // T, :, rows % T].flatten(1).to(merged.dtype)  # (rows, H·E)
    return torch.equal(merged.reshape(B * T, H * E)[rows], sample)


def certified_projection(
    name: str, module: nn.Module, merged: Tensor, output: Tensor, num_heads: int, is_gated: bool
) -> OutputProjection | None:
    """Return a linear layer as an output projection if the heads' terms add up to its `output`, else None.

    `merged` (…, H·E) is its input.
    """
    weights = linear_weights(module)
    if weights is None or weights.weight.shape != (output.shape[-1], merged.shape[-1]):
        return None
    rows = sampled_rows(merged.numel() // merged.shape[-1], ROWS, merged.device)
    sample = merged.reshape(-1, merged.shape[-1])[rows].double()  # (rows, H·E)
    weight = weights.weight.double()
    expected, size = sample @ weight.mT, sample.abs() @ weight.abs().mT  # (rows, d_model) each
    if weights.bias is not None:
        expected, size = expected + weights.bias.double(), size + weights.bias.double().abs()
    difference = (output.reshape(-1, output.shape[-1])[rows].double() - expected).abs()
    tolerance = ROUNDING_UNITS * rounding_unit(output, weights.weight) * size + torch.finfo(output.dtype).tiny
    worst = (difference / tolerance).argmax()
    projection = OutputProjection(
        name,
        weights,
        num_heads,
        is_gated,
        float(difference.flatten()[worst]),
        float(tolerance.flatten()[worst]),
    )
    return projection if projection.certified else None


def rounding_unit(*tensors: Tensor) -> float:
    """Return the unit of rounding of products of these tensors on their device."""
    eps = max(torch.finfo(x.dtype).eps for x in tensors)
    is_reduced = tensors[0].is_cuda and torch.get_float32_matmul_precision() != "highest"
    return max(eps, REDUCED_PRECISION) if is_reduced and tensors[0].dtype == torch.float32 else eps
