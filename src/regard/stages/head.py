"""Stage 4, one head of several: softmax(Q Kᵀ / √d) V, narrower than the model.

New: the head has its own width, `head_size`, and in training some of its attention weights are dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.masks.named_masks import causal_mask
from regard.stages.checks import check_dropout, check_sequence


class Head(nn.Module):
    """One causal head: `forward(x) -> out`, (B, T, n_embd) in, (B, T, head_size) out.

    T is at most `block_size`; `dropout` is the probability with which a weight is dropped in training.
    """

    tril: Tensor  # (block_size, block_size) True = visible

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        n_embd, head_size = check_whole_number("n_embd", n_embd), check_whole_number("head_size", head_size)
        self.block_size = check_whole_number("block_size", block_size)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", causal_mask(self.block_size), persistent=False)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, head_size) of tokens x (B, T, n_embd)."""
        return self.attention(x)[0]  # (B, T, head_size)

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, head_size) of x and its weights (B, T, T), after dropout in training."""
        check_sequence("x", x, self.key, longest=self.block_size)
        T = x.shape[-2]
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_size) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, T)
        scores = scores.masked_fill(~self.tril[:T, :T], -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, T, T)
        return weights @ v, weights  # (B, T, head_size)
