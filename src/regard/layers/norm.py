"""RMSNorm: a vector divided by its root mean square, times a learned weight.

PyTorch's `rms_norm` computes it; this module calls it in float32 for half-precision inputs and returns the
dtype of the input, so that float32 weights serve half-precision activations too (as under autocast).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from regard.attention.arguments import check_positive, check_whole_number
from regard.attention.inputs import working_dtype


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) · weight` over the last dimension, which has size `width`.

    >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).detach()
    tensor([0.8485, 1.1314])
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = check_positive("eps", eps)
        self.weight = nn.Parameter(torch.ones(check_whole_number("width", width)))

    def forward(self, x: Tensor) -> Tensor:
        """x (…, width) normalised, in the dtype of x."""
        if x.shape[-1:] != self.weight.shape:
            raise ValueError(f"x: expected a last dimension of {len(self.weight)}, got {tuple(x.shape)}")
        dtype = working_dtype(x.dtype)
        if x.dtype == self.weight.dtype == dtype:  # the common case, which runs for every token and layer
            return rms_norm(x, self.weight.shape, self.weight, self.eps)
        return rms_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps:g}"
