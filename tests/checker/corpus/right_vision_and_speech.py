"""Vision, diffusion and speech: patches, channels first, windows, latents."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import all_right, right
from tests.checker.layers import FourLayers, FusedHeads


class ViTLayerNorms(FusedHeads):
    """Patches, with layer norms of the queries and keys of a head."""

    def __init__(self, dim, num_heads=8):
        super().__init__(dim, num_heads)
        self.q_norm, self.k_norm = (nn.LayerNorm(dim // num_heads) for _ in range(2))

    def attend(self, q, k, v):
        return super().attend(self.q_norm(q), self.k_norm(k), v)


class ChannelsFirst(nn.Module):
    """Images (B, C, H, W): 1 × 1 convolutions make queries, keys and values of every pixel."""

    def __init__(self, channels, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Conv2d(channels, channels * 3, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        B, C, H, W = x.shape
        q, k, v = self.qkv(x).reshape(B, 3, self.num_heads, C // self.num_heads, H * W).unbind(1)
        scores = torch.einsum("bhdt,bhds->bhts", q, k) * (C // self.num_heads) ** -0.5
        mixed = torch.einsum("bhts,bhds->bhdt", scores.softmax(-1), v)
        return self.proj_out(mixed.reshape(B, C, H, W))


class ChannelsFirstResidual(nn.Module):
    """The block of a diffusion U-Net: group norm, one head, and the image added again."""

    def __init__(self, in_channels):
        super().__init__()
        self.norm = nn.GroupNorm(4, in_channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(4))

    def forward(self, x):
        B, C, H, W = x.shape
        y = self.norm(x)
        q, k, v = self.q(y).flatten(2), self.k(y).flatten(2), self.v(y).flatten(2)  # (B, C, T)
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) * C**-0.5, dim=2)
        mixed = torch.bmm(v, weights.transpose(1, 2)).reshape(B, C, H, W)
        return x + self.proj_out(mixed)


class SignalChannelsFirst(nn.Module):
    """Signals (B, C, T) with one-dimensional convolutions, two roots of the scale."""

    def __init__(self, channels, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Conv1d(channels, channels * 3, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        B, C, T = x.shape
        q, k, v = self.qkv(x).reshape(B, 3, self.num_heads, -1, T).unbind(1)
        root = (C // self.num_heads) ** -0.25
        weights = torch.einsum("bhct,bhcs->bhts", q * root, k * root).softmax(-1)
        return self.proj(torch.einsum("bhts,bhcs->bhct", weights, v).reshape(B, C, T))


class ImagesLast(nn.Module):
    """Images (B, H, W, C) of patches, flattened inside."""

    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, H, W, _ = x.shape
        qkv = self.qkv(x).reshape(B, H * W, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, B * self.num_heads, H * W, -1).unbind(0)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        x = (attn @ v).view(B, self.num_heads, H, W, -1).permute(0, 2, 3, 1, 4).reshape(B, H, W, -1)
        return self.proj(x)


class PerceiverPool(FourLayers):
    """The latents are a parameter of the module: the output has their number."""

    bias = False

    def __init__(self, dim, num_latents=5, heads=4):
        super().__init__(dim, heads)
        self.latents = nn.Parameter(torch.randn(num_latents, dim))

    def forward(self, x):
        latents = self.latents.expand(x.shape[0], -1, -1)
        return self.finish(F.scaled_dot_product_attention(*self.project(latents, x, x)))


class ClipText(nn.Module):
    """CLIP: queries scaled before the heads are split, heads in the batch, two masks."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = num_heads, embed_dim // num_heads, dropout
        self.scale = self.head_dim**-0.5
        self.k_proj, self.v_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.q_proj, self.out_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor, length, batch):
        split = tensor.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        return split.reshape(batch * self.num_heads, length, self.head_dim)

    def forward(self, hidden_states, attention_mask=None):
        B, T, C = hidden_states.size()
        q = self._shape(self.q_proj(hidden_states) * self.scale, T, B)
        k, v = self._shape(self.k_proj(hidden_states), T, B), self._shape(self.v_proj(hidden_states), T, B)
        scores = torch.bmm(q, k.transpose(1, 2))
        if attention_mask is not None:
            scores = (scores.view(B, self.num_heads, T, T) + attention_mask).view(B * self.num_heads, T, T)
        weights = F.dropout(F.softmax(scores, dim=-1), p=self.dropout, training=self.training)
        mixed = torch.bmm(weights, v).view(B, self.num_heads, T, self.head_dim).transpose(1, 2)
        return self.out_proj(mixed.reshape(B, T, C)), weights.view(B, self.num_heads, T, T)


class T5(nn.Module):
    """No scale, as it is folded into the initial weights."""

    def __init__(self, d_model, num_heads, d_kv=12):
        super().__init__()
        self.n_heads, inner = num_heads, num_heads * d_kv
        self.q, self.k = nn.Linear(d_model, inner, bias=False), nn.Linear(d_model, inner, bias=False)
        self.v, self.o = nn.Linear(d_model, inner, bias=False), nn.Linear(inner, d_model, bias=False)

    def forward(self, hidden_states, mask=None, position_bias=None):
        q, k, v = (
            f(hidden_states).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is not None:
            scores = scores + position_bias
        if mask is not None:
            scores = scores + mask
        mixed = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)
        return self.o(mixed.transpose(1, 2).flatten(2))


class SpeechEncoder(nn.Module):
    """Speech toolkits: linear_q, linear_k, linear_v, and a mask (B, 1, S) in which 0 hides."""

    def __init__(self, n_head, n_feat, dropout_rate=0.1):
        super().__init__()
        self.d_k, self.h = n_feat // n_head, n_head
        self.linear_q, self.linear_k = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
        self.linear_v, self.linear_out = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat)
        self.attn, self.dropout = None, nn.Dropout(p=dropout_rate)

    def forward(self, query, key, value, mask):
        B = query.size(0)
        q = self.linear_q(query).view(B, -1, self.h, self.d_k).transpose(1, 2)
        k = self.linear_k(key).view(B, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(B, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            hidden = mask.unsqueeze(1).eq(0)  # (B, 1, T or 1, S)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            self.attn = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)
        else:
            self.attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(self.dropout(self.attn), v)
        return self.linear_out(x.transpose(1, 2).contiguous().view(B, -1, self.h * self.d_k))


class DownsampledHeads(nn.Module):
    """Segment Anything: an inner width below the model's, q, k and v as three inputs."""

    def __init__(self, embedding_dim, num_heads, downsample_rate=2):
        super().__init__()
        self.num_heads, inner = num_heads, embedding_dim // downsample_rate
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embedding_dim, inner) for _ in range(3))
        self.out_proj = nn.Linear(inner, embedding_dim)

    def _separate_heads(self, x):
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def forward(self, q, k, v):
        q, k, v = (
            self._separate_heads(p(x)) for p, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        )
        attn = torch.softmax(q @ k.permute(0, 1, 3, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return self.out_proj((attn @ v).transpose(1, 2).flatten(2))


ENTRIES = [
    *all_right(__name__, "T5"),
    right(T5, scale=1.0),
    right(nn.TransformerEncoderLayer(48, 4, 64, batch_first=True)),
    right(nn.TransformerEncoderLayer(48, 4, 64, batch_first=True, norm_first=True)),
]
