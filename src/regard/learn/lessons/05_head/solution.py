"""Lesson 5, a head: attention as a module that can be moved, saved, trained and verified.

A head is narrower than the model: it projects tokens of d_model numbers to queries, keys and values of
head_dim numbers. Its mask is a buffer, so that it moves with the module. In training, dropout sets some
attention weights to 0 and enlarges the others. The second task is a check of your own: PyTorch's attention on
the same projections has to give the same output.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from regard.stages.head import Head


def check_against_pytorch(head):
    """Return True if a head agrees with PyTorch's own attention, False if not.

    Any head has W_q, W_k and W_v, and head(x) returns the output. It may be in training mode.
    """
    x = torch.randn(2, 6, head.W_q.in_features)  # (B, T, d_model)
    head.eval()  #: switch dropout off: it is random
    out = head(x)  # (B, T, head_dim)
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
    out, weights = head.train().attention(torch.randn(1, 4, 32))
    print("weights in training:", weights[0].detach(), sep="\n")
