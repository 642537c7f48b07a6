"""What is not softmax attention, or more than one: nothing is decided, and the sentence says why."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import Entry
from tests.checker.layers import FourLayers


class Differential(FourLayers):
    """The difference of two softmaxes: weights may be negative."""

    bias, lambda_init = False, 0.6

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        scale = q1.shape[-1] ** -0.5
        weights = (q1 @ k1.mT * scale).softmax(-1) - self.lambda_init * (q2 @ k2.mT * scale).softmax(-1)
        return self.finish(weights @ v)


class Gated(nn.Module):
    """The mixed values are multiplied by a sigmoid of the input."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_gates, self.to_out = (
            nn.Linear(dim, dim * 3),
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
        )

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.to_out(mixed * self.to_gates(x).sigmoid())


class Convolutional(nn.Module):
    """A convolution over neighbours, called attention by its author."""

    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(self.conv(x.mT).mT * x.sigmoid())


class SqueezeExcite(nn.Module):
    """Channel attention: one number a channel."""

    def __init__(self, channels):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, channels // 4), nn.Linear(channels // 4, channels)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3))))))[:, :, None, None]


class Additive(nn.Module):
    """Bahdanau: scores by a small network."""

    def __init__(self, hidden_size):
        super().__init__()
        self.W_q, self.W_k = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.w_v = nn.Linear(hidden_size, 1)

    def forward(self, queries, keys, values):
        features = torch.tanh(self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None])
        return torch.bmm(self.w_v(features).squeeze(-1).softmax(-1), values)


NOT_SOFTMAX = "this is not softmax attention"
ENTRIES = [
    Entry("convolution", Convolutional, verdict="undecided", why=NOT_SOFTMAX),
    Entry("differential attention", Differential, verdict="undecided", why=NOT_SOFTMAX),
    # Inside it is softmax attention: nothing measured speaks against that, but the gates are not known.
    Entry("gated attention", Gated, verdict="undecided", why="cannot reproduce `to_gates.weight`"),
    Entry("channel attention", SqueezeExcite, verdict="undecided", why="could not be found"),
    Entry("additive attention", Additive, verdict="undecided", why="could not be found"),
]
