"""Modules in the style of lessons and videos: usual names, and every habit of calling that they teach."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import all_right, right
from tests.checker.layers import FourLayers, FusedHeads


class ValuesKeysQuery(nn.Module):
    """Inputs in the order values, keys, query, and a mask that must be given."""

    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        N, value_len, key_len, query_len = query.shape[0], values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(N, query_len, self.heads * self.head_dim))


class SharedPerHead(nn.Module):
    """One small projection (D to D) that all heads share, applied after the heads are split."""

    def __init__(self, embed_dim, n_heads):
        super().__init__()
        self.n_heads, self.single_head_dim = n_heads, embed_dim // n_heads
        D = self.single_head_dim
        self.query_matrix = nn.Linear(D, D, bias=False)
        self.key_matrix = nn.Linear(D, D, bias=False)
        self.value_matrix = nn.Linear(D, D, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, key, query, value, mask=None):
        B, T, S = query.size(0), query.size(1), key.size(1)
        k = self.key_matrix(key.view(B, S, self.n_heads, self.single_head_dim)).transpose(1, 2)
        q = self.query_matrix(query.view(B, T, self.n_heads, self.single_head_dim)).transpose(1, 2)
        v = self.value_matrix(value.view(B, S, self.n_heads, self.single_head_dim)).transpose(1, 2)
        product = torch.matmul(q, k.transpose(-1, -2))
        if mask is not None:
            product = product.masked_fill(mask == 0, float("-1e20"))
        scores = F.softmax(product / math.sqrt(self.single_head_dim), dim=-1)
        return self.out(torch.matmul(scores, v).transpose(1, 2).reshape(B, T, -1))


class Temperature(nn.Module):
    """The innermost module of a well-known translation: divided by a constant temperature."""

    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class TranslationAttention(nn.Module):
    """Around it: projections without biases, a residual and a norm at the end."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = Temperature(temperature=d_k**0.5)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        B, T, S, residual = q.size(0), q.size(1), k.size(1), q
        q = self.w_qs(q).view(B, T, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(B, S, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(B, S, self.n_head, self.d_v).transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, attn = self.attention(q, k, v, mask=mask)
        q = self.dropout(self.fc(q.transpose(1, 2).contiguous().view(B, T, -1)))
        return self.layer_norm(q + residual), attn


class ProjectsAgain(nn.Module):
    """nn.MultiheadAttention, and one more layer behind it."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.linear(mixed)


class Lazy(nn.Module):
    """Layers that learn their width from the first input."""

    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads, self.dropout = num_heads, nn.Dropout(dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = self.W_q(queries), self.W_k(keys), self.W_v(values)
        q, k, v = (x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            beyond = torch.arange(k.shape[2])[None, None, None, :] >= valid_lens[:, None, None, None]
            scores = scores.masked_fill(beyond, -1e6)
        mixed = self.dropout(F.softmax(scores, dim=-1)) @ v
        return self.W_o(mixed.transpose(1, 2).flatten(2))


class OneSequence(nn.Module):
    """Two-dimensional inputs (T, C), as in the first chapter of a book."""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        return torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1) @ values


class BareParameters(nn.Module):
    """Three parameters (C, D), and no layer."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Parameter(torch.rand(d_in, d_out)) for _ in range(3))

    def forward(self, x):
        q, k, v = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return torch.softmax(q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5, dim=-1) @ v


class PaddingOfTokens(FusedHeads):
    """A mask (B, S) of ones and zeros, called just mask."""

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            assert mask.shape == x.shape[:2], "one number a token"
            scores = scores.masked_fill(mask[:, None, None, :] == 0, -torch.finfo(scores.dtype).max)
        return self.merge(scores.softmax(dim=-1) @ v)


class Selectable(FusedHeads):
    """causal=True is an argument of the constructor."""

    def __init__(self, dim, heads=8, causal=False):
        super().__init__(dim, heads)
        self.causal = causal

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class DropoutIsAModule(FusedHeads):
    """The constructor takes a dropout module, or None."""

    def __init__(self, d_model, num_heads, dropout=None):
        super().__init__(d_model, num_heads)
        self.dropout = dropout

    def attend(self, q, k, v):
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return (weights if self.dropout is None else self.dropout(weights)) @ v


class HeadWithAnotherWidth(nn.Module):
    """One head on other widths, in the order query, key, value, with mask (B, T, S)."""

    def __init__(self, dim_in, dim_q, dim_k):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim_in, dim_q), nn.Linear(dim_in, dim_k), nn.Linear(dim_in, dim_k)

    def forward(self, query, key, value):
        scores = self.q(query).bmm(self.k(key).transpose(1, 2)) / self.k.out_features**0.5
        return F.softmax(scores, dim=-1).bmm(self.v(value))


class RowsNamedByLetters(nn.Module):
    """The four layers are called a, b, c and d."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.a, self.b, self.c, self.d = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        v, k, q = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.a, self.b, self.c))
        return self.d(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))


class MaskIsAdded(FourLayers):
    """A float mask is multiplied by −1e9 and added: 1 hides."""

    def forward(self, v, k, q, mask):
        q, k, v = self.project(q, k, v)
        logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if mask is not None:
            logits = logits + mask * -1e9
        weights = torch.softmax(logits, dim=-1)
        return self.finish(torch.matmul(weights, v)), weights


class BeforeItsNorm(nn.Module):
    """The norm inside, before the projections, and the residual outside."""

    def __init__(self, dim, heads=4, dim_head=12, dropout=0.0):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x):
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        weights = self.dropout((torch.matmul(q, k.transpose(-1, -2)) * self.scale).softmax(dim=-1))
        return self.to_out(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class AddsItself(FourLayers):
    """Norm and residual both inside."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.ln = nn.LayerNorm(d_model)

    def forward(self, x):
        y = self.ln(x)
        return x + self.finish(F.scaled_dot_product_attention(*self.project(y, y, y), is_causal=True))


ENTRIES = [
    *all_right(__name__, "MaskIsAdded", "HeadWithAnotherWidth", "Selectable"),
    right(Temperature(temperature=10**0.5)),
    right(nn.MultiheadAttention(48, 4, batch_first=True)),
    right(nn.MultiheadAttention(48, 4, bias=False)),
    right(nn.MultiheadAttention, init={"embed_dim": 48, "num_heads": 4}),
    right(nn.MultiheadAttention(48, 4, kdim=20, vdim=20, batch_first=True)),
    right(nn.MultiheadAttention(48, 4, kdim=20, vdim=24, batch_first=True)),
    right(Selectable, init={"causal": True}),
    right(Selectable, init={"dim": 64, "heads": 8}),
    right(Selectable, dim=64, heads=8),
    right(Selectable, causal=True),
    right(DropoutIsAModule, init={"dropout": nn.Dropout(0.2)}),
    right(HeadWithAnotherWidth, init={"dim_in": 24, "dim_q": 20, "dim_k": 20}),
    right(MaskIsAdded, true_means="hide"),
]
