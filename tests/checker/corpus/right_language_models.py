"""Decoders in the style of published models: rotary positions, grouped heads, caps, sinks, slopes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import all_right, right
from tests.checker.layers import FourLayers, FusedHeads


@dataclass
class ModelArgs:
    """The configuration of a model, with large defaults."""

    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int | None = None
    max_seq_len: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0


def precompute_freqs_cis(dim, end, theta=10000.0):
    """Return the rotations of every position as complex numbers, (end, dim / 2)."""
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].double() / dim))
    return torch.polar(torch.ones(end, dim // 2).double(), torch.outer(torch.arange(end).double(), freqs))


def rotate_complex(x, freqs_cis):
    """Rotate neighbouring channels of (B, T, H, D) as complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    freqs = freqs_cis.view(1, x.shape[1], 1, -1).to(pairs.dtype)
    return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)


def rotate_half(x):
    """Swap the halves of the channels, the second with its sign changed."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def repeat_kv(x, times):
    """Repeat every key head (B, G, S, D) for its queries."""
    B, G, S, D = x.shape
    return x[:, :, None].expand(B, G, times, S, D).reshape(B, G * times, S, D)


class LlamaComplex(nn.Module):
    """freqs_cis is an argument of the forward pass, and so is the mask."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads, self.n_kv_heads = args.n_heads, args.n_kv_heads or args.n_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def forward(self, x, freqs_cis, mask=None):
        B, T, _ = x.shape
        xq = rotate_complex(self.wq(x).view(B, T, self.n_heads, self.head_dim), freqs_cis).transpose(1, 2)
        xk = rotate_complex(self.wk(x).view(B, T, self.n_kv_heads, self.head_dim), freqs_cis).transpose(1, 2)
        xv = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        xk, xv = (repeat_kv(t, self.n_heads // self.n_kv_heads) for t in (xk, xv))
        scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        output = torch.matmul(F.softmax(scores, dim=-1), xv)
        return self.wo(output.transpose(1, 2).contiguous().view(B, T, -1))


class LlamaBuffer(LlamaComplex):
    """The complex table is a buffer of the module, and it is causal by itself."""

    def __init__(self, args: ModelArgs):
        super().__init__(args)
        table = precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta)
        self.register_buffer("freqs_cis", table, persistent=False)

    def forward(self, x):
        T = x.shape[1]
        mask = torch.full((T, T), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        return super().forward(x, self.freqs_cis[:T], mask)


class CosSinArguments(nn.Module):
    """cos and sin (T, D) are two arguments; the first half of the channels is paired with the second."""

    def __init__(self, d_model, num_heads, num_kv_groups):
        super().__init__()
        self.num_heads, self.num_kv_groups, self.head_dim = num_heads, num_kv_groups, d_model // num_heads
        self.W_query = nn.Linear(d_model, d_model, bias=False)
        self.W_key = nn.Linear(d_model, num_kv_groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(d_model, num_kv_groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask, cos, sin):
        B, T, _ = x.shape
        q = self.W_query(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        k = self.W_key(x).view(B, T, self.num_kv_groups, -1).transpose(1, 2)
        v = self.W_value(x).view(B, T, self.num_kv_groups, -1).transpose(1, 2)
        q = q * cos[:T] + rotate_half(q) * sin[:T]
        k = k * cos[:T] + rotate_half(k) * sin[:T]
        k, v = (t.repeat_interleave(self.num_heads // self.num_kv_groups, dim=1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / self.head_dim**0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)  # True hides
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))


class CosSinPair(nn.Module):
    """One argument holds both tables, as in recent libraries."""

    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head, self.head_dim = n_head, dim // n_head
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, cos_sin):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.n_head, self.head_dim) for f in (self.c_q, self.c_k, self.c_v))
        cos, sin = cos_sin  # (1, T, 1, D / 2)
        q, k = (_rotate_heads_last(t, cos, sin) for t in (q, k))
        q, k = (F.rms_norm(t, (t.size(-1),)) for t in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).contiguous().view(B, T, C))


def _rotate_heads_last(x, cos, sin):
    first, second = x.chunk(2, dim=3)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], 3)


class RotaryModule(nn.Module):
    """Makes the tables and turns (B, H, T, D): halves paired."""

    def __init__(self, dim, base=10000.0, scaling_factor=1.0):
        super().__init__()
        self.scaling_factor = scaling_factor
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).double() / dim))

    def forward(self, x):
        t = torch.arange(x.shape[-2], device=x.device).double() / self.scaling_factor
        emb = torch.outer(t, self.inv_freq.double()).repeat(1, 2)
        return (x * emb.cos() + rotate_half(x) * emb.sin()).to(x.dtype)


class RotaryInside(FusedHeads):
    """A rotary module as a part, causal, fused projection; optionally scaled positions."""

    def __init__(self, d_model, num_heads, scaling_factor=1.0):
        super().__init__(d_model, num_heads)
        self.rotary = RotaryModule(d_model // num_heads, scaling_factor=scaling_factor)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)


class NeoXPartial(nn.Module):
    """GPT-NeoX: the fused projection ordered head by head, a quarter of the channels rotated."""

    def __init__(self, hidden_size, num_heads, rotary_pct=0.5, max_length=32):
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        self.query_key_value, self.dense = (
            nn.Linear(hidden_size, 3 * hidden_size),
            nn.Linear(hidden_size, hidden_size),
        )
        inv = 10000.0 ** -(torch.arange(0, self.rotary_ndims, 2).double() / self.rotary_ndims)
        angles = torch.outer(torch.arange(max_length).double(), inv)
        self.register_buffer("cos_cached", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin_cached", torch.cat([angles, angles], -1).sin(), persistent=False)
        mask = torch.tril(torch.ones(max_length, max_length, dtype=torch.bool))
        self.register_buffer("bias", mask.view(1, 1, max_length, max_length), persistent=False)

    def rotate(self, x):
        T, n = x.shape[-2], self.rotary_ndims
        turned, rest = x[..., :n], x[..., n:]
        cos, sin = self.cos_cached[:T].to(x.dtype), self.sin_cached[:T].to(x.dtype)
        return torch.cat([turned * cos + rotate_half(turned) * sin, rest], -1)

    def forward(self, hidden_states):
        B, T, C = hidden_states.shape
        qkv = self.query_key_value(hidden_states).view(B, T, self.num_heads, 3 * self.head_size)
        q, k, v = (t.permute(0, 2, 1, 3) for t in qkv.split(self.head_size, dim=-1))
        q, k = self.rotate(q), self.rotate(k)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        lowest = torch.finfo(scores.dtype).min
        scores = torch.where(self.bias[:, :, :T, :T], scores, torch.tensor(lowest, dtype=scores.dtype))
        mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.dense(mixed.permute(0, 2, 1, 3).reshape(B, T, C))


class InterleavedPartial(nn.Module):
    """GPT-J: neighbouring channels are paired, and only the first few channels are rotated."""

    def __init__(self, embed_dim, num_heads, rotary_dim=8):
        super().__init__()
        self.num_heads, self.rotary_dim = num_heads, rotary_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4)
        )

    def rotate(self, x):
        """Rotate (B, T, H, D) at its positions."""
        n, T = self.rotary_dim, x.shape[1]
        freqs = 10000.0 ** (-torch.arange(0, n, 2).double() / n)
        angles = (torch.arange(T).double()[:, None] * freqs)[:, None, :]  # (T, 1, n / 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., :n:2], x[..., 1:n:2]
        turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
        return torch.cat([turned.flatten(-2), x[..., n:]], -1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.num_heads, -1) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.rotate(q).transpose(1, 2), self.rotate(k).transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).reshape(B, T, C))


class FalconMultiQuery(nn.Module):
    """One key and value head; the fused projection holds all queries, then one key and one value."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, (num_heads + 2) * self.head_dim, bias=False)
        self.dense = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states):
        B, T, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(B, T, self.num_heads + 2, self.head_dim)
        q, k, v = fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        return self.dense(mixed.transpose(1, 2).reshape(B, T, -1))


class CohereNorms(FourLayers):
    """A layer norm of the whole projected queries and keys, before the heads are split."""

    bias = False

    def __init__(self, hidden_size, num_heads):
        super().__init__(hidden_size, num_heads)
        self.q_norm, self.k_norm = (nn.LayerNorm(hidden_size, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class CosineSimilarity(FusedHeads):
    """l2-normalised queries and keys with a learned temperature for every head."""

    def __init__(self, dim, heads=4):
        super().__init__(dim, heads)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 10.0))

    def attend(self, q, k, v):
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return (q @ k.mT * self.temperature).softmax(-1) @ v


class LearnedNormScale(FusedHeads):
    """l2-normalised queries and keys, each with a learned scale of every channel, and a constant 8."""

    def __init__(self, dim, heads=4):
        super().__init__(dim, heads)
        self.q_scale, self.k_scale = (nn.Parameter(torch.ones(dim // heads)) for _ in range(2))

    def attend(self, q, k, v):
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        return F.scaled_dot_product_attention(q, k, v, scale=8.0)


PARTS = ("ModelArgs", "precompute_freqs_cis", "rotate_complex", "rotate_half", "repeat_kv")
PARTS += ("RotaryModule", "CosSinArguments")
ENTRIES = [
    *all_right(__name__, *PARTS),
    right(CosSinArguments, true_means="hide"),
    right(LlamaComplex, init={"args": ModelArgs(dim=48, n_heads=4, n_kv_heads=2)}),
    right(RotaryInside, init={"scaling_factor": 4.0}),
]
