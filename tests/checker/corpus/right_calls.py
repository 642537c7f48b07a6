"""Ways to be called that public code has: masks that must be given, sizes of images, other layouts."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import all_right, undecided
from tests.checker.layers import FourLayers

d_k = 10  # a constant of the file, which `FileConstant` reads


class FileConstant(nn.Module):
    """The scale is of a constant of the file; a mask must be given, and True hides."""

    def forward(self, Q, K, V, attn_mask):
        scores = torch.matmul(Q, K.transpose(-1, -2)) / math.sqrt(d_k)
        scores = scores.masked_fill(attn_mask, -1e9)
        weights = nn.Softmax(dim=-1)(scores)
        return torch.matmul(weights, V), weights


def width_as_argument(q, k, v, d_k, mask=None, dropout=None):
    """The width of a head is an argument; a mask (B, T, S) is for all heads."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
    scores = F.softmax(scores, dim=-1)
    return torch.matmul(scores if dropout is None else dropout(scores), v)


class DocumentedMask(FourLayers):
    """Attention of queries to keys and values."""

    def forward(self, queries, keys, values, attention_mask=None):
        """Attend. `attention_mask` is (B, H, T, S); True indicates masking."""
        q, k, v = self.project(queries, keys, values)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask, -torch.inf)
        return self.finish(scores.softmax(-1) @ v)


class MaskMustBeGiven(FourLayers):
    """The mask has no default and may not be None."""

    def forward(self, x, mask):
        q, k, v = self.project(x, x, x)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(mask == 0, -1e9)
        return self.finish(scores.softmax(-1) @ v)


class HeightAndWidth(FourLayers):
    """Patches of an image with its height and width, which only an option would need."""

    def forward(self, x, H, W):
        assert x.shape[1] == H * W
        q, k, v = self.project(x, x, x)
        return self.finish(F.scaled_dot_product_attention(q, k, v))


class FixedWindow(FourLayers):
    """A window of exactly 3 × 2 patches."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("inside", torch.ones(6, 6, dtype=torch.bool), persistent=False)

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=self.inside))


class TimeFirstByNames(nn.Module):
    """Inputs (T, B, C), as the names of their sizes say."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.output = nn.Linear(d_model, d_model)

    def forward(self, *, query, key, value):
        seq_len, batch_size, _ = query.shape
        q, k, v = self.query(query), self.key(key), self.value(value)
        q, k, v = (x.view(*x.shape[:2], self.heads, -1) for x in (q, k, v))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), v)
        return self.output(mixed.reshape(seq_len, batch_size, -1))


class PassesItsMaskOn(nn.Module):
    """nn.MultiheadAttention inside, to which the mask is passed on."""

    def __init__(self, nhead, d_model, dropout=0.0):
        super().__init__()
        self.att = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)

    def forward(self, query, key, value, attn_mask=None, key_padding_mask=None):
        return self.att(query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask)


class CachedCosines(FourLayers):
    """Cosines and sines in float32, computed at the first call and kept."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.cos_cached = self.sin_cached = None

    def tables(self, T, D, device):
        if self.cos_cached is None or self.cos_cached.shape[0] < T:
            theta = 1.0 / (10000 ** (torch.arange(0, D, 2, device=device).float() / D))
            angles = torch.arange(T, device=device).float()[:, None] * theta
            angles = torch.cat([angles, angles], dim=1)
            self.cos_cached, self.sin_cached = angles.cos(), angles.sin()
        return self.cos_cached[:T], self.sin_cached[:T]

    def forward(self, x):
        q, k, v = self.project(x, x, x)
        cos, sin = (t.to(x.dtype) for t in self.tables(*q.shape[-2:], x.device))
        q, k = (t * cos + torch.cat([-t.chunk(2, -1)[1], t.chunk(2, -1)[0]], -1) * sin for t in (q, k))
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class MaskAsASwitch(FourLayers):
    """Any mask makes it causal; what it holds is not read."""

    def forward(self, x, mask=None):
        q, k, v = self.project(x, x, x)
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None))


ENTRIES = [*all_right(__name__, "MaskAsASwitch"), undecided(MaskAsASwitch, "mask")]
