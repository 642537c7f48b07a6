"""Stage 9, a key/value cache: softmax(Q Kᵀ / √d + M) V for the new tokens only.

New: the keys and values of earlier tokens do not change when a token is added, so they are kept and not
computed again. The tokens hold their positions already, as with `LearnedPositions` of stage 8.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.stages.checks import check_cache, check_settings

Cache = tuple[Tensor, Tensor]
"""The keys and the values of the tokens so far, (B, H, S, head_dim) each."""


class CachedMultiHeadAttention(nn.Module):
    """Causal multi-head attention with a cache: `forward(x, cache=None) -> (out, cache)`.

    `x` and the output are (B, T, d_model): the tokens that continue those of the cache. `num_heads` must
    divide `d_model`. `dropout` is the probability with which a weight is dropped in training. However a
    sequence is cut into calls, the output is the same.

    >>> layer, x = CachedMultiHeadAttention(d_model=8, num_heads=2).eval(), torch.randn(1, 5, 8)
    >>> whole, _ = layer(x)
    >>> prompt, cache = layer(x[:, :3])
    >>> rest, cache = layer(x[:, 3:], cache)
    >>> torch.allclose(torch.cat([prompt, rest], dim=1), whole, atol=1e-6)
    True
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """The output (B, T, d_model) of the new tokens x (B, T, d_model), and the cache with them in it."""
        check_cache(x, cache, self.W_q, self.num_heads)
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        if cache is not None:
            k = torch.cat([cache[0], k], dim=-2)  #: the keys so far, then the new ones, (B, H, S, head_dim)
            v = torch.cat([cache[1], v], dim=-2)  #: the values so far, then the new ones, (B, H, S, head_dim)
        cache = (k, v)  #: what the next call needs
        T, S = q.shape[-2], k.shape[-2]
        # The first new token sees all S − T tokens of the cache and itself, the last one sees all S.
        visible = torch.ones(T, S, dtype=torch.bool, device=x.device)  # (T, S)
        visible = visible.tril(S - T)  #: True where a key may be seen, (T, S)
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, S)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, S)
        heads = (weights @ v).transpose(-3, -2).flatten(-2)  # (B, T, d_model) side by side
        return self.W_o(heads), cache  # (B, T, d_model)

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_model) as heads (B, H, T, head_dim)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)
