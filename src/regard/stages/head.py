"""Stage 5, a head ready for training: dropout(softmax(Q Kᵀ / √d + M)) V.

New: in training, some weights are set to 0 at random and the others are multiplied by 1 / (1 − dropout), so
that a row sums to 1 on average. In evaluation nothing is dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings


class Head(nn.Module):
    """One causal head: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` is (B, T, d_model) with T at most `max_seq_len`, and the output is (B, T, head_dim): a head is usually
    narrower than the model. `dropout` is the probability with which a weight is dropped in training.
    """

    causal_mask: Tensor  # (max_seq_len, max_seq_len) True = visible

    def __init__(self, d_model: int, head_dim: int, max_seq_len: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, head_dim=head_dim, max_seq_len=max_seq_len, dropout=dropout)
        self.W_q = nn.Linear(d_model, head_dim, bias=False)
        self.W_k = nn.Linear(d_model, head_dim, bias=False)
        self.W_v = nn.Linear(d_model, head_dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        visible = torch.ones(max_seq_len, max_seq_len, dtype=torch.bool).tril()  # True = visible
        self.register_buffer("causal_mask", visible, persistent=False)  #: a buffer causal_mask, not saved

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, head_dim) of tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, head_dim) of x and its weights (B, T, T), after dropout in training."""
        check_sequence("x", x, self.W_q)
        T, longest = x.shape[-2], len(self.causal_mask)
        if longest < T:
            raise ValueError(f"x: expected a length of at most {longest}, its maximum, got {T}")
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, head_dim) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  #: dot products over √head_dim, read from k, (B, T, T)
        visible = self.causal_mask[:T, :T]  #: the corner of the mask for T tokens, (T, T)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, dim=-1)  # (B, T, T)
        weights = self.dropout(weights)  #: the weights with dropout, (B, T, T)
        return weights @ v, weights  # (B, T, head_dim)
