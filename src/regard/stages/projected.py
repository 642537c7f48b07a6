"""Stage 7, multi-head attention with an output projection: softmax(Q Kᵀ / √d + M) V in every head, times W_o.

New: `W_o` mixes the outputs of the heads, so that what one head found can reach every channel of the model.
The heads share the width of the model, so the output can be added to the input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings


class ProjectedMultiHeadAttention(nn.Module):
    """Causal attention as transformers have it: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` and the output are (B, T, d_model); `num_heads` must divide `d_model`. `dropout` is the probability
    with which a weight is dropped in training.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)  #: the output projection, to d_model, no bias
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, d_model) of tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, d_model) of x (B, T, d_model), and the weights of each head (B, H, T, T)."""
        check_sequence("x", x, self.W_q)
        T = x.shape[-2]
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, T)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        heads = (weights @ v).transpose(-3, -2).flatten(-2)  #: weights @ v, merged, (B, T, d_model)
        out = self.W_o(heads)  #: the heads mixed by the output projection, (B, T, d_model)
        return out, weights

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_model) as heads (B, H, T, head_dim)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)
