"""Stage 1, simplified self-attention: softmax(X Xᵀ) X, with nothing to learn.

The score of two tokens is their dot product, softmax turns the scores of a row into weights that sum to 1,
and the output of a token is the mean of all tokens with these weights.
"""

from __future__ import annotations

import torch
from torch import Tensor


def simplified_self_attention(X: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(X Xᵀ) X for tokens X (…, T, d): the output (…, T, d) and the attention weights (…, T, T).

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> out, attn = simplified_self_attention(X)
    >>> attn
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    if not isinstance(X, Tensor) or X.ndim < 2 or not X.is_floating_point():
        got = f"{tuple(X.shape)} {X.dtype}" if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"X: expected a float tensor (batch, length, width) or (length, width), got {got}")
    scores = X @ X.mT  # (B, T, T)
    attn = torch.softmax(scores, dim=-1)  # (B, T, T) each row sums to 1
    return attn @ X, attn  # (B, T, d)
