import torch
from torch import nn
import torch.nn.functional as F


class CausalHead(nn.Module):
    def __init__(self, d_model, head_size, max_len, dropout=0.0):
        super().__init__()
        self.query = nn.Linear(d_model, head_size)
        self.key = nn.Linear(d_model, head_size)
        self.value = nn.Linear(d_model, head_size)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(max_len, max_len, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        if T > len(self.mask):
            raise ValueError(f"x: expected at most {len(self.mask)} tokens, got {T}")
        q, k, v = self.query(x), self.key(x), self.value(x)
        D = q.shape[-1]
        scores = q @ k.transpose(-2, -1)
        scores = scores / D**0.5
        allowed = self.mask[:T, :T]
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        out = weights @ v
        return out
