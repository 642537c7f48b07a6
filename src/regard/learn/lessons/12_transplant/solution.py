"""Lesson 12, your attention in a trained model: your module takes a layer's weights and gives its very map.

The model in the box has 6 layers of 4 heads of width 64, rotary positions, no biases, and one matrix `qkv`
for queries, keys and values. Your module has W_q, W_k and W_v apart. With the layer's weights, and on the
very vectors that the layer got, it has to give the same map and the same output, up to rounding.

Replace every `...` below, then run:

    regard learn 12 --check      judges this file, and names your mistake
    regard learn 12 --watch      does so whenever you save it
    regard learn 12 --hint       says how to fix it
    python lesson12.py           compares your map with the model's
"""

import torch
from torch import nn


def rotate(x):
    """Rotary positions of queries or keys x (..., T, D): channel i is paired with channel i + D / 2.

    A pair (a, b) at position p becomes (a cos - b sin, b cos + a sin) with the angle p * 10000 ** (-2 i / D).
    """
    T, D = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, D, 2) / D)  # (D / 2,)
    angles = torch.arange(T)[:, None] * frequencies  # (T, D / 2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., : D // 2], x[..., D // 2 :]  #: the first and second of each pair, (..., T, D / 2) each
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class TrainedAttention(nn.Module):
    """Causal multi-head attention with rotary positions: `forward(x) -> (out, weights)`."""

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

    def forward(self, x):
        """The output (B, T, d_model) and the weights (B, H, T, T)."""
        B, T, d_model = x.shape
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        q, k = rotate(q), rotate(k)  #: queries and keys with their positions, (B, H, T, head_dim)
        scores = q @ k.mT / self.head_dim**0.5  #: scaled scores, (B, H, T, T)
        visible = torch.ones(T, T, dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        out = self.W_o((weights @ v).transpose(1, 2).reshape(B, T, d_model))  #: merged and mixed
        return out, weights


def take_weights(mine, attention):
    """Copy the weights of a layer's attention into my module.

    `attention.qkv.weight` is (3 * d_model, d_model): the rows of the queries, then those of the keys, then
    those of the values. `attention.out.weight` is (d_model, d_model).
    """
    with torch.no_grad():
        W_q, W_k, W_v = attention.qkv.weight.chunk(3)  #: its three parts, (d_model, d_model) each
        mine.W_q.weight.copy_(W_q)
        mine.W_k.weight.copy_(W_k)
        mine.W_v.weight.copy_(W_v)
        mine.W_o.weight.copy_(attention.out.weight)


def layer_input(model, ids, layer):
    """The vectors (B, T, d_model) that the attention of a layer gets when the model reads ids (B, T)."""
    seen = []

    def keep(module, inputs):
        seen.append(inputs[0])  #: the first input of the module goes into the list

    hook = model.blocks[layer].attention.register_forward_pre_hook(keep)
    with torch.no_grad():
        model(ids)
    hook.remove()
    return seen[0]


# Predict, then look: how far is a weight of your map from the model's, at most?
largest_difference = 1e-6  #: your guess: 0, 1e-7, 1e-3, ...


if __name__ == "__main__":
    import regard
    from regard.gpt import GPT

    model = GPT.from_pretrained("default")
    seen = regard.capture(model, text="If the lamp is lit, the ships will come home.")
    ids = torch.tensor([model.tokenizer.encode("If the lamp is lit, the ships will come home.").ids])
    for layer in range(6):
        mine = TrainedAttention(d_model=256, num_heads=4)
        take_weights(mine, model.blocks[layer].attention)
        out, weights = mine(layer_input(model, ids, layer))
        difference = (weights - seen[layer].to_dense()).abs().max().item()
        print(f"layer {layer}: largest difference of a weight {difference:.1e}")
