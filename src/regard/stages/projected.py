"""Stage 7, multi-head attention with an output projection, as in a transformer: softmax(Q Kᵀ / √d) V, times
W_o.

New: `W_o` mixes the outputs of the heads, so that what one head found can reach every channel of the model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.masks.named_masks import causal_mask
from regard.stages.checks import check_dropout, check_sequence, head_width


class ProjectedMultiHeadAttention(nn.Module):
    """Causal multi-head attention with an output projection: `forward(X) -> out`, (B, T, d_model) in and out.

    `num_heads` must divide `d_model`; `dropout` is the probability with which a weight is dropped in
    training.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_head, self.num_heads = head_width(d_model, num_heads), num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, X: Tensor) -> Tensor:
        """The output (B, T, d_model) of tokens X (B, T, d_model)."""
        heads, _ = self.attention(X)
        out: Tensor = self.W_o(heads)  # (B, T, d_model)
        return out

    def attention(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated heads of X (B, T, d_model) before `W_o`, and their weights (B, H, T, T)."""
        check_sequence("X", X, self.W_q)
        T = X.shape[-2]
        q, k, v = (self.split(W(X)) for W in (self.W_q, self.W_k, self.W_v))  # (B, H, T, d_head) each
        scores = q @ k.mT / math.sqrt(self.d_head)  # (B, H, T, T)
        scores = scores.masked_fill(~causal_mask(T).to(X.device), -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        return (weights @ v).transpose(-3, -2).flatten(-2), weights  # (B, T, d_model)

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_model) as heads (B, H, T, d_head)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.d_head).transpose(-3, -2)
