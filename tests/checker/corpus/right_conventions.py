"""Right attention in further styles: conventions of masks, names of parameters, layouts and blocks."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.checker.corpus import all_right
from tests.checker.layers import FourLayers, FusedHeads

INF = float("inf")


def padding_keeps(q, k, v, key_padding_mask=None):
    """(B, T, H, D), as in the reference of flash-attn's tests."""
    scores = torch.einsum("bthd,bshd->bhts", q / math.sqrt(q.shape[-1]), k)
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask[:, None, None, :], -INF)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)


def padding_keeps_with_queries(q, k, v, query_padding_mask=None, key_padding_mask=None, attn_bias=None):
    """The same with rows of padding set to 0, and a bias."""
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    if key_padding_mask is not None:
        scores.masked_fill_(~key_padding_mask[:, None, None, :], -INF)
    if attn_bias is not None:
        scores = scores + attn_bias
    weights = scores.softmax(-1)
    if query_padding_mask is not None:
        weights = weights.masked_fill(~query_padding_mask[:, None, :, None], 0.0)
    return torch.einsum("bhts,bshd->bthd", weights, v)


def padding_hides(q, k, v, key_padding_mask=None):
    """(B, H, T, D), as in PyTorch."""
    mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class PaddingKeeps(nn.Module):
    """A module with flash-attn's convention."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None):
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


def checkpointed(q, k, v):
    """A reentrant checkpoint, whose gradients come only from .backward()."""
    return checkpoint(F.scaled_dot_product_attention, q, k, v, use_reentrant=True)


class ReturnsBias(FourLayers):
    """Output and position bias, as T5 returns them."""

    bias = False

    def forward(self, x, mask=None, position_bias=None):
        q, k, v = self.project(x, x, x)
        if position_bias is None:
            position_bias = torch.zeros(1, self.num_heads, x.shape[1], x.shape[1], dtype=x.dtype)
            if mask is not None:
                position_bias = position_bias.masked_fill(~mask, -INF)
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + position_bias).softmax(-1)
        return self.finish(weights @ v), position_bias


class CacheRefused(FusedHeads):
    """A cache that is refused, in words, unless the module is causal."""

    def __init__(self, d_model, num_heads, causal=False):
        super().__init__(d_model, num_heads)
        self.causal = causal

    def forward(self, x, cache=None, return_cache=False):
        q, k, v = self.split(x)
        if cache is not None:
            assert self.causal, "only allow caching for causal attention"
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        T, S = q.shape[2], k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T) if self.causal else None
        y = self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return (y, torch.stack((k, v))) if return_cache else y


def refuses_windows(q, k, v, causal=False, window=None):
    """An option that is there for the signature's sake."""
    assert window is None, "windows need the compiled kernel"
    mask = torch.ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]).bool() if causal else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class NamedWAndB(nn.Module):
    """A layer whose weight is (in, out) and called w, and its bias b."""

    def __init__(self, out, width):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(width, out) * 0.02), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.w + self.b


class FirstGPT(nn.Module):
    """The attention of the first GPT, with such layers and a mask called b."""

    def __init__(self, n_embd, n_ctx, n_head):
        super().__init__()
        self.n_head = n_head
        self.register_buffer("b", torch.ones(n_ctx, n_ctx).tril().view(1, 1, n_ctx, n_ctx), persistent=False)
        self.c_attn, self.c_proj = NamedWAndB(3 * n_embd, n_embd), NamedWAndB(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        b = self.b[:, :, :T, :T]
        w = (q @ k.mT / math.sqrt(v.size(-1)) * b - 1e9 * (1 - b)).softmax(-1)
        return self.c_proj((w @ v).transpose(1, 2).reshape(B, T, C))


class Unprojected(nn.Module):
    """Attention of a sequence on itself, without weights: no projection is used for three roles."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class KernelAndOffset(nn.Module):
    """Layers with yet other names."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (self._layer(dim) for _ in range(4))

    @staticmethod
    def _layer(dim):
        layer = nn.Module()
        layer.kernel, layer.offset = nn.Parameter(torch.randn(dim, dim)), nn.Parameter(torch.randn(dim))
        return layer

    def forward(self, x):
        q, k, v = (
            (x @ f.kernel + f.offset).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return mixed @ self.out.kernel + self.out.offset


class TimeFirst(nn.Module):
    """(T, B, C), which nothing but its behaviour says."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        n, items, c = x.shape
        q, k, v = (f(x).reshape(n, items * self.h, -1).transpose(0, 1) for f in (self.q, self.k, self.v))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.o((weights @ v).transpose(0, 1).reshape(n, items, c))


def _in_blocks(q, k, v, rows, columns, hidden=None):
    outputs = []
    for i in range(0, q.shape[-2], rows):
        block = q[..., i : i + rows, :] * q.shape[-1] ** -0.5
        top = block.new_full((*block.shape[:-1], 1), -INF)
        total, out = torch.zeros_like(top), block.new_zeros(*block.shape[:-1], v.shape[-1])
        for j in range(0, k.shape[-2], columns):
            scores = block @ k[..., j : j + columns, :].mT
            if hidden is not None:
                scores = scores.masked_fill(hidden(i, j, scores), -INF)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            safe = new.nan_to_num(neginf=0.0)
            factor, p = (top - safe).exp(), (scores - safe).exp()
            total = total * factor + p.sum(-1, keepdim=True)
            out, top = out * factor + p @ v[..., j : j + columns, :], new
        outputs.append(out / total)
    return torch.cat(outputs, -2)


def chunks(q, k, v, chunk_size=256):
    """One size for both."""
    return _in_blocks(q, k, v, chunk_size, chunk_size)


BLOCK_M, BLOCK_N = 128, 64


def constant_blocks(q, k, v):
    """The sizes of blocks are constants."""
    BLOCK_M = 128
    return _in_blocks(q, k, v, BLOCK_M, BLOCK_N)


@dataclass
class LocalArgs:
    """The configuration of gpt-fast, of which -1 means as many as heads."""

    dim: int = 64
    n_head: int = 8
    n_local_heads: int = -1


class LocalHeads(nn.Module):
    """Grouped heads in the names of gpt-fast."""

    def __init__(self, config: LocalArgs):
        super().__init__()
        self.n_head, self.head_dim = config.n_head, config.dim // config.n_head
        self.n_local_heads = config.n_local_heads if config.n_local_heads > 0 else config.n_head
        self.wqkv = nn.Linear(config.dim, (self.n_head + 2 * self.n_local_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        size = self.n_local_heads * self.head_dim
        q, k, v = self.wqkv(x).split([C, size, size], -1)
        q, k, v = (t.view(B, T, -1, self.head_dim).transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.n_head // self.n_local_heads, 1) for t in (k, v))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))


def log_space(q, k, v):
    """Weights as the exponential of log_softmax."""
    return torch.log_softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1).exp() @ v


def merged_batch(q, k, v):
    """Heads in the axis of the batch, and baddbmm."""
    B, H, _, D = q.shape
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    scores = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0.0, alpha=D**-0.5)
    return (scores.softmax(-1) @ v).unflatten(0, (B, H))


def base_two(q, k, v):
    """Powers of two, with log2(e) in the scale."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 * math.log2(math.e))
    p = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return p / p.sum(-1, keepdim=True) @ v


def named_weights(q, k, v):
    """Weights in a dictionary."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return {"output": weights @ v, "weights": weights}


class OneLayerPerHead(nn.Module):
    """A list of heads, concatenated."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        D = d_model // num_heads
        self.q, self.k, self.v = (
            nn.ModuleList(nn.Linear(d_model, D) for _ in range(num_heads)) for _ in range(3)
        )
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        heads = [
            F.scaled_dot_product_attention(q(x), k(x), v(x))
            for q, k, v in zip(self.q, self.k, self.v, strict=True)
        ]
        return self.o(torch.cat(heads, -1))


ENTRIES = all_right(__name__, "NamedWAndB", "LocalArgs")
