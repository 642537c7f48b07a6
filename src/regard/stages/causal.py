"""Stage 3, causal self-attention: softmax(Q Kᵀ / √d) V in which no token sees the future.

New: a token sees itself and earlier tokens only, as in a model that generates from left to right; and an
output projection `W_o` mixes the channels of the result.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.masks.named_masks import causal_mask
from regard.stages.checks import check_sequence


class CausalSelfAttention(nn.Module):
    """One causal head with an output projection: `forward(x) -> out`, (B, T, d_model) in and out.

    T is at most `max_seq_len`.
    """

    causal_mask: Tensor  # (max_seq_len, max_seq_len) True = visible

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        d_model = check_whole_number("d_model", d_model)
        self.max_seq_len = check_whole_number("max_seq_len", max_seq_len)
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        # A buffer moves with the module. It is not saved, so that the weights load at any max_seq_len.
        self.register_buffer("causal_mask", causal_mask(self.max_seq_len), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The projected attention output (B, T, d_model) of tokens x (B, T, d_model)."""
        output, _ = self.attention(x)
        projected: Tensor = self.W_o(output)  # (B, T, d_model)
        return projected

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The attention output of x (B, T, d_model) before `W_o`, and the attention weights (B, T, T)."""
        check_sequence("x", x, self.W_q, longest=self.max_seq_len)
        T = x.shape[-2]
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, d_model) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, T)
        scores = scores.masked_fill(~self.causal_mask[:T, :T], -torch.inf)
        weights = torch.softmax(scores, dim=-1)  # (B, T, T) each row sums to 1
        return weights @ v, weights  # (B, T, d_model)
