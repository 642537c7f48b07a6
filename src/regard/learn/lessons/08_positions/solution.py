"""Lesson 8, positions: rotary positions and ALiBi, for attention that knows the order of its tokens.

Attention is blind to order: permute the tokens, and the outputs are permuted and otherwise the same. Rotary
positions turn every query and key by an angle that grows with its position, so that a score depends on the
distance of two tokens. ALiBi subtracts the distance, times a slope, from the score.

Replace every `...` below, then run:

    regard learn 8 --check      judges this file, and names your mistake
    regard learn 8 --watch      does so whenever you save it
    regard learn 8 --hint       says how to mend it
    python lesson8.py           runs the lines at the end
"""

import math

import torch
from torch import nn


def rotate(x, start=0):
    """Turn the channels of x (..., T, D) in pairs; the tokens are at the positions start, start + 1, ...

    Channel i and channel i + D/2 are a pair. Pair i turns by 10000 ** (-2i / D) radians for each position.
    """
    T, D = x.shape[-2:]
    positions = torch.arange(start, start + T, device=x.device)  # (T,)
    frequencies = 10000.0 ** (-torch.arange(0, D, 2, device=x.device) / D)  # (D/2,) radians per position
    angles = positions[:, None] * frequencies  #: one angle for each position and each pair, (T, D/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # (T, D/2) each
    a, b = x.chunk(2, dim=-1)  # (..., T, D/2) each: the first and the second channel of every pair
    turned_a = a * cos - b * sin  #: the first channels of the turned pairs, (..., T, D/2)
    turned_b = b * cos + a * sin  #: the second channels of the turned pairs, (..., T, D/2)
    return torch.cat([turned_a, turned_b], dim=-1)  # (..., T, D)


class RotaryAttention(nn.Module):
    """Causal heads with rotary positions: x (B, T, d_model) gives the output (B, T, d_model) and the weights
    (B, H, T, T)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def split(self, t):
        """Projected tokens t (B, T, d_model) as heads (B, H, T, head_dim)."""
        B, T, _ = t.shape
        return t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        B, T, d_model = x.shape
        q, k, v = (self.split(W(x)) for W in (self.W_q, self.W_k, self.W_v))  # (B, H, T, head_dim) each
        q, k = rotate(q), rotate(k)  #: turn what has to know its position, (B, H, T, head_dim) each
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, T)
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T) True = visible
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)  # (B, H, T, T)
        out = self.W_o((weights @ v).transpose(1, 2).reshape(B, T, d_model))  # (B, T, d_model)
        return out, weights


def alibi_bias(num_heads, T):
    """What ALiBi adds to the scaled scores of T tokens, (H, T, T): 0 on the diagonal, less to its left.

    Head h = 1, 2, ..., H has the slope 2 ** (-8h / H). What is right of the diagonal is hidden by the causal
    mask, so its numbers do not matter.
    """
    heads = torch.arange(1, num_heads + 1)  # (H,)
    slopes = 2.0 ** (-8 * heads / num_heads)  #: the slope of each head, (H,)
    positions = torch.arange(T)  # (T,)
    distance = positions[:, None] - positions  #: how far query i (row) is behind key j (column), (T, T)
    return -slopes[:, None, None] * distance  #: the bias, (H, T, T)


# Predict, then look: one pair turns by 1 radian for each position. Query and key are both (1, 0); the query
# is at position 7, the key at position 4. What is their dot product?
score_at_distance_3 = -0.99  #: your prediction


if __name__ == "__main__":
    x = torch.tensor([[1.0, 0.0]] * 6)
    print("scores of equal tokens after the rotation:", rotate(x) @ rotate(x).mT, sep="\n")
    print("ALiBi, the second of 8 heads:", alibi_bias(8, 4)[1], sep="\n")
