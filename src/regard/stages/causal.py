"""Stage 4, causal self-attention: softmax(Q Kᵀ / √d + M) V, where M is −inf for every later token.

New: a token sees itself and earlier tokens only, as in a model that writes from left to right. A score of
−inf becomes a weight of 0, and the weights of the visible tokens still sum to 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings


class CausalSelfAttention(nn.Module):
    """Self-attention that sees no later token: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` is (B, T, d_model) with T at most `max_seq_len`, and the output is (B, T, d_model), after an output
    projection `W_o` (lesson 7). With a `head_dim` it is one head of that width alone: the
    output is (B, T, head_dim), without a projection.
    """

    causal_mask: Tensor  # (max_seq_len, max_seq_len) True = visible

    def __init__(self, d_model: int, max_seq_len: int, head_dim: int | None = None) -> None:
        super().__init__()
        check_settings(d_model=d_model, max_seq_len=max_seq_len, head_dim=head_dim)
        width = head_dim or d_model
        self.W_q = nn.Linear(d_model, width, bias=False)
        self.W_k = nn.Linear(d_model, width, bias=False)
        self.W_v = nn.Linear(d_model, width, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False) if head_dim is None else nn.Identity()
        # A buffer moves with the module. It is not saved, so that the weights load at any max_seq_len.
        size = (max_seq_len, max_seq_len)
        visible = torch.ones(size, dtype=torch.bool).tril()  #: True where a query (row) may see a key
        self.register_buffer("causal_mask", visible, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, d_model) of tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, d_model) of x (B, T, d_model), and the weights (B, T, T)."""
        check_sequence("x", x, self.W_q)
        T, longest = x.shape[-2], len(self.causal_mask)
        if longest < T:
            raise ValueError(f"x: expected a length of at most {longest}, its maximum, got {T}")
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, head_dim) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, T)
        visible = self.causal_mask[:T, :T]  # (T, T)
        scores = scores.masked_fill(~visible, -torch.inf)  #: −inf in these scores where a key is hidden
        weights = torch.softmax(scores, dim=-1)  # (B, T, T) each row sums to 1
        return self.W_o(weights @ v), weights  # (B, T, d_model)
