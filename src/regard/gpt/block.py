"""The Transformer block: look around, then think, each added to the stream that runs through.

This file knows the parts of one layer. What the layer looks at is `regard.layers.Attention`'s business, how
many of them there are is `model`'s.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, silu

from regard.attention.masks.base import Mask
from regard.attention.masks.named import causal, window
from regard.gpt.config import Config
from regard.layers import Attention, KVCache, RMSNorm, Rotary


def make_norm(config: Config) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.width, config.norm_eps)
    return nn.LayerNorm(config.width, config.norm_eps)


class FeedForward(nn.Module):
    """Each token by itself: wider, bent, and back to the stream's width.

    "swiglu" makes two wide versions in one product and lets the first, bent, be the gate of the second.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation = config.activation
        wide = 2 * config.hidden if config.activation == "swiglu" else config.hidden  # rows: gate, then value
        self.up = nn.Linear(config.width, wide, bias=config.mlp_bias)
        self.down = nn.Linear(config.hidden, config.width, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        wide: Tensor = self.up(x)  # (B, T, hidden or 2 · hidden)
        if self.activation == "swiglu":
            gate, value = wide.chunk(2, -1)
            bent = silu(gate) * value
        else:
            bent = gelu(wide, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        narrow: Tensor = self.down(bent)  # (B, T, width)
        return narrow


class Block(nn.Module):
    """Norm, attention, add; norm, feed-forward, add."""

    def __init__(self, config: Config, layer: int, rotary: Rotary | None) -> None:
        super().__init__()
        looks_back = config.windows[layer]
        self.attention_norm = make_norm(config)
        self.attention = Attention(
            config.width,
            config.heads,
            num_kv_heads=config.kv_heads,
            head_dim=config.head_width,
            qkv_bias=config.qkv_bias,
            out_bias=config.out_bias,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
            rotary=rotary,
            mask=causal if looks_back is None else causal & window(looks_back),
            dropout=config.dropout,
        )
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, *, mask: Mask | Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        x = x + self._dropped(self.attention(self.attention_norm(x), mask=mask, cache=cache))
        return x + self._dropped(self.feed_forward(self.feed_forward_norm(x)))  # (B, T, width)

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout) if self.training and self.dropout else x
