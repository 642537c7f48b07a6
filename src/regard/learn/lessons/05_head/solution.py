"""Lesson 5, a head: attention as a module that can be moved, saved, trained and verified.

A head is narrower than the model: it projects tokens of d_model numbers to queries, keys and values of
head_dim numbers. Its mask is a buffer, so that it moves with the module. In training, dropout sets some
attention weights to 0 and enlarges the others. The second task is a check of your own: PyTorch's attention on
the same projections has to give the same output.

Replace every `...` below, then run:

    regard learn 5 --check      judges this file, and names your mistake
    regard learn 5 --watch      does so whenever you save it
    regard learn 5 --hint       says how to mend it
    python lesson5.py           runs the lines at the end
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    """One causal head: tokens x (B, T, d_model) give the output (B, T, head_dim) and weights (B, T, T)."""

    def __init__(self, d_model, head_dim, max_seq_len, dropout=0.1):
        super().__init__()
        self.W_q = nn.Linear(d_model, head_dim, bias=False)
        self.W_k = nn.Linear(d_model, head_dim, bias=False)
        self.W_v = nn.Linear(d_model, head_dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        visible = torch.ones(max_seq_len, max_seq_len, dtype=torch.bool).tril()  # True = visible
        self.register_buffer(
            "causal_mask", visible, persistent=False
        )  #: visible as the buffer causal_mask, not saved

    def forward(self, x):
        T, longest = x.shape[1], len(self.causal_mask)
        if x.shape[1] > longest:
            raise ValueError(f"x: expected at most {longest} tokens, got {T}")
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, head_dim) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  #: dot products over √head_dim, read from k, (B, T, T)
        visible = self.causal_mask[:T, :T]  #: the corner of the mask for T tokens, (T, T)
        scores = scores.masked_fill(~visible, -torch.inf)  # (B, T, T)
        weights = torch.softmax(scores, dim=-1)  # (B, T, T)
        weights = self.dropout(weights)  #: the weights with dropout, (B, T, T)
        out = weights @ v  # (B, T, head_dim)
        return out, weights


def check_against_pytorch(head):
    """Return True if a head agrees with PyTorch's own attention, False if not.

    Any head has W_q, W_k and W_v, and head(x) returns the output and the weights. It may be in training mode.
    """
    x = torch.randn(2, 6, head.W_q.in_features)  # (B, T, d_model)
    head.eval()  #: switch dropout off: it is random
    out, _ = head(x)  # (B, T, head_dim)
    q, k, v = head.W_q(x), head.W_k(x), head.W_v(x)  #: the head's own projections of x, (B, T, head_dim) each
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #: PyTorch's own attention, causal
    return torch.allclose(out, expected, atol=1e-6)  #: whether out and expected differ by 1e-6 at most


# Predict, then look: dropout with p = 0.5 drops the first of the weights 0.2483, 0.2483, 0.5035 and keeps the
# other two. What do the three numbers sum to then?
row_sum_after_dropout = 1.503  #: your prediction


if __name__ == "__main__":
    head = Head(d_model=32, head_dim=16, max_seq_len=8)
    print("agrees with PyTorch:", check_against_pytorch(head))
    print("state_dict:", list(head.state_dict()))
    out, weights = head.train()(torch.randn(1, 4, 32))
    print("weights in training:", weights[0].detach(), sep="\n")
