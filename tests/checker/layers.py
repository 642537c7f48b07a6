"""The usual projections, in one layer or in four, for modules that differ in how heads attend."""

import torch.nn.functional as F
from torch import nn


class FusedHeads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def merge(self, mixed):
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.merge(self.attend(*self.split(x)))


class FourLayers(nn.Module):
    """The layers around attention: of the queries, keys, values and the output."""

    bias = True

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(d_model, d_model, bias=self.bias) for _ in range(4)
        )

    def project(self, *inputs):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        heads = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
        return [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in heads]

    def finish(self, mixed):
        return self.o_proj(mixed.transpose(1, 2).flatten(2))
