"""Stage 1, simplified self-attention: softmax(x xᵀ) x, with nothing to learn.

The score of two tokens is their dot product, softmax turns the scores of a row into weights that sum to 1,
and the output of a token is the mean of all tokens with these weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.stages.checks import check_tokens


def simplified_self_attention(x: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(x xᵀ) x for tokens x (B, T, d_model): the output (B, T, d_model) and the weights (B, T, T).

    x may also be one text (T, d_model). `.mT` swaps the last two axes, and leaves a batch as it is.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> out, weights = simplified_self_attention(x)
    >>> weights
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    check_tokens(x)
    scores = x @ x.mT  #: the dot product of every token with every token, (B, T, T)
    weights = torch.softmax(scores, dim=-1)  #: softmax of each row, so that it sums to 1, (B, T, T)
    out = weights @ x  #: the mean of the tokens with these weights, (B, T, d_model)
    return out, weights
