"""Lesson 9, the cache: keys and values of earlier tokens are kept, so that each is computed once.

A causal model writes one token at a time. The keys and values of the tokens before never change, so the layer
returns them, and gets them back with the next token. The result has to be the same as without a cache, in
whatever pieces a text arrives.

Replace every `...` below, then run:

    regard learn 9 --check      judges this file, and names your mistake
    regard learn 9 --watch      does so whenever you save it
    regard learn 9 --hint       says how to mend it
    python lesson9.py           runs the lines at the end
"""

import torch
from torch import nn


class CachedAttention(nn.Module):
    """Causal multi-head attention with a cache: the layer of lesson 7, which can go on where it stopped."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def split(self, x):
        """Split x (B, T, d_model) into heads (B, H, T, head_dim)."""
        B, T, _ = x.shape
        return x.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, cache=None):
        """Attention of T new tokens x (B, T, d_model) to themselves and to the tokens in the cache.

        The cache is a pair of keys and values (B, H, tokens, head_dim), or None at the start of a text.
        Returns the output (B, T, d_model) and the new cache.
        """
        B, T, d_model = x.shape
        q = self.split(self.W_q(x))  # (B, H, T, head_dim)
        k = self.split(self.W_k(x))  # (B, H, T, head_dim)
        v = self.split(self.W_v(x))  # (B, H, T, head_dim)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)  #: the keys so far, then the new ones, (B, H, S, head_dim)
            v = torch.cat([cache[1], v], dim=2)  #: the values so far, then the new ones, (B, H, S, head_dim)
        cache = (k, v)  #: what the next call needs
        S = k.shape[2]
        scores = q @ k.mT / self.head_dim**0.5  # (B, H, T, S)
        visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)  #: True where a key may be seen, (T, S)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, dim=-1)  # (B, H, T, S)
        out = (weights @ v).transpose(1, 2).reshape(B, T, d_model)
        return self.W_o(out), cache


# Predict, then look: how many megabytes (millions of bytes) are the keys and values of 1,000 tokens in
# Llama 3.1 8B? It has 32 layers, each with 8 key/value heads of width 128, and 2 bytes for each number.
megabytes_of_a_cache = 131  #: your guess, before you compute it


if __name__ == "__main__":
    torch.manual_seed(0)
    layer = CachedAttention(d_model=16, num_heads=2)
    x = torch.randn(1, 6, 16)
    whole, _ = layer(x)
    cache = None
    for t in range(6):
        out, cache = layer(x[:, t : t + 1], cache)
        difference = (out - whole[:, t : t + 1]).abs().max().item()
        print(f"token {t}: {cache[0].shape[2]} keys in the cache, difference {difference:.1e}")
