"""The Transformer block: attention, then an MLP, each normalised first and added to the residual stream.

This file knows the modules of one layer. The attention itself is `regard.layers.Attention`; the stack of
layers is `model`.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, silu

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal, window
from regard.gpt.config import Config
from regard.layers import Attention, KVCache, RMSNorm, Rotary


def make_norm(config: Config) -> nn.Module:
    """The norm that the config names, over `d_model`."""
    if config.norm == "rms":
        return RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps)


class FeedForward(nn.Module):
    """The MLP of a block: from `d_model` to `intermediate_size`, an activation, and back.

    For "swiglu", `up` computes a gate and a value in one product; silu(gate) multiplies the value.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.activation = config.activation
        # The rows of `up` are the gate and then the value, or the value alone.
        up_size = config.intermediate_size * (2 if config.activation == "swiglu" else 1)
        self.up = nn.Linear(config.d_model, up_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.d_model, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP's output for x (B, T, d_model), of the same shape."""
        up: Tensor = self.up(x)  # (B, T, intermediate_size), twice as wide for "swiglu"
        if self.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            activated = silu(gate) * value
        else:
            activated = gelu(up, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        output: Tensor = self.down(activated)  # (B, T, d_model)
        return output


class Block(nn.Module):
    """One layer: norm, attention, add; norm, MLP, add.

    `layer` is its number in the stack, which selects its window; `rotary` is shared by all layers.
    """

    def __init__(self, config: Config, layer: int, rotary: Rotary | None) -> None:
        super().__init__()
        window_size = config.windows[layer]
        self.attention_norm = make_norm(config)
        self.attention = Attention(
            config.d_model,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            qkv_bias=config.qkv_bias,
            out_bias=config.out_bias,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
            rotary=rotary,
            mask=causal if window_size is None else causal & window(window_size),
            dropout=config.dropout,
        )
        self.feed_forward_norm = make_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, *, mask: Mask | Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """The residual stream after this block, for x (B, T, d_model) before it.

        `mask` narrows the layer's own mask; `cache` holds the keys and values of earlier calls.
        """
        drops = self.training and self.dropout
        update = self.attention(self.attention_norm(x), mask=mask, cache=cache)
        x = x + (dropout(update, self.dropout) if drops else update)
        update = self.feed_forward(self.feed_forward_norm(x))
        return x + (dropout(update, self.dropout) if drops else update)  # (B, T, d_model)
