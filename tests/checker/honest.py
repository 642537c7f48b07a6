"""Attention that is right, written in many ways. None of it may be called wrong."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def fused_on(backend):
    def attention(q, k, v, attn_mask=None, is_causal=False):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)

    return attention


fused_math = fused_on(SDPBackend.MATH)
fused_flash = fused_on(SDPBackend.FLASH_ATTENTION)


def einsum_attention(query, key, value, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.einsum("bhqk,bhke->bhqe", scores.softmax(-1), value)


def additive_mask(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.size(-1))
    if mask is not None:
        scores = scores + mask
    weights = F.softmax(scores, dim=-1)
    return weights @ v, weights


def minus_a_billion(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = F.softmax(scores, dim=-1)
    return weights @ v, weights


def smallest_number(q, k, v, mask=None, causal=False):
    scores = q @ k.transpose(-1, -2) / math.sqrt(k.size(-1))
    lowest = torch.finfo(scores.dtype).min
    if causal:
        future = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, lowest)
    if mask is not None:
        scores = scores.masked_fill(~mask, lowest)
    return F.softmax(scores.float(), dim=-1).to(q.dtype) @ v


def chunked(q, k, v, causal=False, block=3):
    """Online softmax over blocks of keys, with the log-sum-exp."""
    T, S = q.shape[-2], k.shape[-2]
    most = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
    total, mixed = torch.zeros_like(most), torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for start in range(0, S, block):
        keys = torch.arange(start, min(start + block, S))
        scores = q @ k[..., keys, :].mT * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(keys > torch.arange(T)[:, None] + S - T, -torch.inf)
        higher = torch.maximum(most, scores.amax(-1))
        weights, shrink = torch.exp(scores - higher[..., None]), torch.exp(most - higher)
        total = total * shrink + weights.sum(-1)
        mixed = mixed * shrink[..., None] + weights @ v[..., keys, :]
        most = higher
    return mixed / total[..., None], most + total.log()


def heads_last(q, k, v, causal=False):
    """(B, T, H, D), as flash-attention's own interface has it."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def three_dimensions(q, k, v, mask=None):
    scores = torch.bmm(q, k.transpose(1, 2)) / q.size(2) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.bmm(F.softmax(scores, dim=2), v)


def two_dimensions(Q, K, V):
    return torch.softmax(Q @ K.transpose(0, 1) / Q.shape[1] ** 0.5, dim=1) @ V


class FusedProjection(nn.Module):
    """One projection for all three, the mask a buffer, two dropouts, everything from a configuration."""

    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        square = torch.ones(config.block_size, config.block_size).tril()
        self.register_buffer("bias", square.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(self.n_embd, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        mixed = self.attn_dropout(F.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).contiguous().view(B, T, C)))


class FusedKernel(FusedProjection):
    def forward(self, x):
        B, T, C = x.size()
        parts = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (part.view(B, T, self.n_head, -1).transpose(1, 2) for part in parts)
        p = self.attn_dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).reshape(B, T, C)))


class OneHead(nn.Module):
    def __init__(self, n_embd, head_size, block_size, dropout=0.2):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, num_heads, n_embd, block_size, dropout=0.2):
        super().__init__()
        size = n_embd // num_heads
        self.heads = nn.ModuleList([OneHead(n_embd, size, block_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([head(x) for head in self.heads], dim=-1)))


class EachHeadItsThree(nn.Module):
    """The fused projection ordered head by head: q, k, v of head 0, then of head 1."""

    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, input_dim)

    def forward(self, x, mask=None, return_attention=False):
        B, T, _ = x.size()
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, 3 * self.head_dim).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.ndim == 3 else mask
            scores = scores.masked_fill(mask == 0, -9e15)
        weights = F.softmax(scores, dim=-1)
        mixed = self.o_proj((weights @ v).permute(0, 2, 1, 3).reshape(B, T, self.embed_dim))
        return (mixed, weights) if return_attention else mixed


class NamelessLayers(nn.Module):
    """Four layers in a list, queries, keys and values as three inputs, the weights kept for a picture."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.attn, self.dropout = None, nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        mask = mask.unsqueeze(1) if mask is not None else None
        B = query.size(0)
        q, k, v = (
            layer(x).view(B, -1, self.h, self.d_k).transpose(1, 2)
            for layer, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        return self.linears[-1]((self.attn @ v).transpose(1, 2).contiguous().view(B, -1, self.h * self.d_k))


class BareParameters(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        q, k, v = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return torch.softmax(q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5, dim=-1) @ v


class ParametersOfEachHead(nn.Module):
    """(H, C, D) parameters and einsum."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        shape = (num_heads, d_model, d_model // num_heads)
        self.num_heads = num_heads
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(num_heads, d_model // num_heads, d_model))
        self.b_Q = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))

    def forward(self, x):
        q = torch.einsum("btc,hcd->bhtd", x, self.W_Q) + self.b_Q[:, None]
        k, v = (torch.einsum("btc,hcd->bhtd", x, W) for W in (self.W_K, self.W_V))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        return torch.einsum("bhtd,hdc->btc", weights @ v, self.W_O)


class FutureBuffer(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj, self.dropout = nn.Linear(d_out, d_out), nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        B, T, _ = x.shape
        layers = (self.W_query, self.W_key, self.W_value)
        q, k, v = (layer(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for layer in layers)
        scores = q @ k.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:T, :T], -torch.inf)
        weights = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ v).transpose(1, 2).contiguous().view(B, T, self.d_out))
