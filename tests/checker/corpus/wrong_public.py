# ruff: noqa: E501 (a line of source text is as long as it is)
"""Mistakes that public projects have had, each in our own words, with the issue or pull request that names it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import Entry


class Width(nn.Module):
    """delzac/cntkx#10: the scores are divided by the width, not by its root."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden_dim, hidden_dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / q.shape[-1], dim=-1), v)


class EmbeddingScale(nn.Module):
    """FareedKhan-dev/train-llm-from-scratch#3: one over the root of the embedding's width, in a head."""

    def __init__(self, head_size, n_embed, context_length):
        super().__init__()
        self.key = nn.Linear(n_embed, head_size, bias=False)
        self.query = nn.Linear(n_embed, head_size, bias=False)
        self.value = nn.Linear(n_embed, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(context_length, context_length)), persistent=False)

    def forward(self, x):
        _, T, C = x.shape
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * (1 / math.sqrt(C))
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return scores.softmax(dim=-1) @ self.value(x)


class DividedByScale(nn.Module):
    """esceptico/perceiver-io#9: divided by D ** -0.5, which multiplies by the root."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.projection = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        attention = ((q @ k.transpose(-2, -1)) / self.scale).softmax(dim=-1)
        return self.projection((attention @ v).transpose(1, 2).flatten(2))


class UnscaledCross(nn.Module):
    """Project-MONAI/GenerativeModels#146: the scale is computed and never applied."""

    def __init__(self, query_dim, cross_dim=20, num_heads=4, head_dim=12):
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads, self.scale = num_heads, 1 / math.sqrt(head_dim)
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(cross_dim, inner, bias=False)
        self.to_v = nn.Linear(cross_dim, inner, bias=False)
        self.to_out = nn.Linear(inner, query_dim)

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = torch.matmul(q, k.transpose(-1, -2)).softmax(dim=-1)
        return self.to_out(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class FeatureScale(nn.Module):
    """omihub777/ViT-CIFAR#11: the root of all features instead of those of one head."""

    def __init__(self, feats=48, head=4):
        super().__init__()
        self.head, self.sqrt_d = head, feats**0.5
        self.q, self.k, self.v, self.o = (nn.Linear(feats, feats) for _ in range(4))

    def forward(self, x):
        b, n, f = x.size()
        q, k, v = (
            m(x).view(b, n, self.head, f // self.head).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        score = F.softmax(torch.einsum("bhif,bhjf->bhij", q, k) / self.sqrt_d, dim=-1)
        return self.o(torch.einsum("bhij,bhjf->bihf", score, v).flatten(2))


class FoldedHeads(nn.Module):
    """reczoo/FuxiCTR#30: the heads are split by a view of the batch, without a transpose."""

    def __init__(self, dim_model, num_head):
        super().__init__()
        self.num_head, self.dim_head = num_head, dim_model // num_head
        self.fc_Q, self.fc_K, self.fc_V = (nn.Linear(dim_model, dim_model) for _ in range(3))
        self.fc = nn.Linear(dim_model, dim_model)

    def forward(self, x):
        B = x.size(0)
        Q, K, V = (
            fc(x).view(B * self.num_head, -1, self.dim_head) for fc in (self.fc_Q, self.fc_K, self.fc_V)
        )
        weights = F.softmax(torch.matmul(Q, K.permute(0, 2, 1)) * K.size(-1) ** -0.5, dim=-1)
        return self.fc(torch.matmul(weights, V).view(B, -1, self.dim_head * self.num_head))


class NoPermute(nn.Module):
    """jsbaan/transformer-from-scratch#6, ajhalthor/Transformer-Neural-Network#4: no permute before the reshape."""

    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.num_heads, self.qkv_dim = num_heads, hidden_dim // num_heads
        self.qkv_proj = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
        self.o_proj = nn.Linear(hidden_dim, hidden_dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, 3 * self.qkv_dim).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        values = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.qkv_dim), dim=-1) @ v
        return self.o_proj(values.reshape(B, T, C))


class HeadsBeforeBatch(nn.Module):
    """gazelle93/Transformer-Various-Positional-Encoding#1: (B·H) is unfolded as (H, B)."""

    def __init__(self, emb_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, emb_dim // num_heads
        self.q_linear, self.k_linear, self.v_linear = (nn.Linear(emb_dim, emb_dim) for _ in range(3))
        self.out = nn.Linear(emb_dim, emb_dim)

    def split(self, x):
        B, T, _ = x.shape
        return x.view(B, T, self.num_heads, self.head_dim).permute(0, 2, 1, 3).reshape(-1, T, self.head_dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.split(self.q_linear(x)), self.split(self.k_linear(x)), self.split(self.v_linear(x))
        out = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(self.head_dim), dim=-1) @ v
        out = out.view(self.num_heads, B, T, self.head_dim).permute(1, 2, 0, 3).reshape(B, T, C)
        return self.out(out)


class MaskOfAnotherItem(nn.Module):
    """lsdefine/attention-is-all-you-need-keras#36: heads in front of the batch, the mask repeated behind it."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.qs_layer, self.ks_layer, self.vs_layer = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(3)
        )
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        B = q.shape[0]

        def split(x):
            return x.unflatten(-1, (self.n_head, -1)).permute(2, 0, 1, 3).flatten(0, 1)  # (H·B, T, D)

        q, k, v = split(self.qs_layer(q)), split(self.ks_layer(k)), split(self.vs_layer(v))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat_interleave(self.n_head, 0), -1e10)
        out = scores.softmax(-1) @ v
        return self.w_o(out.unflatten(0, (self.n_head, B)).permute(1, 2, 0, 3).flatten(2))


class SoftmaxOfQueries(nn.Module):
    """labmlai/annotated_deep_learning_paper_implementations#146: softmax over i in `bihd,bjhd->bijh`."""

    def __init__(self, n_channels, n_heads=4):
        super().__init__()
        self.n_heads, self.d_k = n_heads, n_channels // n_heads
        self.projection = nn.Linear(n_channels, n_heads * self.d_k * 3)
        self.output = nn.Linear(n_heads * self.d_k, n_channels)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.projection(x).view(B, T, self.n_heads, 3 * self.d_k).chunk(3, dim=-1)
        attn = torch.einsum("bihd,bjhd->bijh", q, k) * self.d_k**-0.5
        attn = attn.softmax(dim=1)
        return self.output(torch.einsum("bijh,bjhd->bihd", attn, v).reshape(B, T, -1))


class HidesWhatIsValid(nn.Module):
    """InseeFrLab/torchTextClassifiers#92: a mask that marks padding, passed where True means look."""

    def __init__(self, embed_dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_q, self.c_k, self.c_v = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(3))
        self.c_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x, attention_mask=None):
        q, k, v = (
            c(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for c in (self.c_q, self.c_k, self.c_v)
        )
        mask = None if attention_mask is None else ~attention_mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Tiled(nn.Module):
    """onnx/onnx#7274: key/value heads are tiled, [0 1 0 1], where groups are neighbours, [0 0 1 1]."""

    def __init__(self, hidden_size, num_heads=4, num_kv_heads=2):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        D = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * D)
        self.k_proj, self.v_proj = (nn.Linear(hidden_size, num_kv_heads * D) for _ in range(2))
        self.o_proj = nn.Linear(num_heads * D, hidden_size)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (
            p(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for p in (self.k_proj, self.v_proj)
        )
        k, v = (t.tile(1, self.num_heads // self.num_kv_heads, 1, 1) for t in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DropoutInEval(nn.Module):
    """karpathy/nanoGPT#240, huggingface/pytorch-image-models#1978: dropout_p does not know eval()."""

    def __init__(self, dim, num_heads, attn_drop=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class KeysProjectValues(nn.Module):
    """yflyzhang/AnnotatedTransformer#1: the values go through the keys' layer."""

    def __init__(self, h, d_model):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        B = query.size(0)
        query = self.q_proj(query).view(B, -1, self.h, self.d_k).transpose(1, 2)
        key = self.k_proj(key).view(B, -1, self.h, self.d_k).transpose(1, 2)
        value = self.k_proj(value).view(B, -1, self.h, self.d_k).transpose(1, 2)
        x = torch.softmax(query @ key.mT / math.sqrt(self.d_k), dim=-1) @ value
        return self.o_proj(x.transpose(1, 2).reshape(B, -1, self.h * self.d_k))


def _turn(x, start=0):
    """Rotate halves of the last axis by positions along the last axis but one."""
    T, D = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, D, 2, device=x.device).double() / D)
    angles = torch.arange(start, start + T, device=x.device)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class _Rotary(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def heads(self, x):
        return (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))

    def merge(self, y):
        return self.wo(y.transpose(1, 2).flatten(2))


class RotaryAlongHeads(_Rotary):
    """mlfoundations/open_lm#4, vukrosic/leo-optimizer#2: rotary positions along the heads."""

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k = (_turn(t.transpose(1, 2)).transpose(1, 2) for t in (q, k))
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class RotaryRestarts(_Rotary):
    """pytorch/executorch#2010, lucidrains/rotary-embedding-torch#11: the offset is not in the tables."""

    def forward(self, x, cache=None):
        q, k, v = self.heads(x)
        q, k = _turn(q), _turn(k)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        T, S = q.shape[2], k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)), (k, v)


class CausalFlagWithCache(nn.Module):
    """time-series-foundation-models/lag-llama#81: is_causal=True with one query and many keys."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q_proj, self.kv_proj = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, 2 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.kv_cache = None

    def forward(self, x, use_kv_cache=False):
        q = self.q_proj(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.kv_proj(x).chunk(2, dim=-1))
        if use_kv_cache:
            if self.kv_cache is not None:
                k, v = torch.cat([self.kv_cache[0], k], 2), torch.cat([self.kv_cache[1], v], 2)
            self.kv_cache = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def reset_cache(self):
        self.kv_cache = None


class ResetOfAFlag(CausalFlagWithCache):
    """time-series-foundation-models/lag-llama#81: the reset leaves the keys of the last series."""

    def forward(self, x, use_kv_cache=False):
        q = self.q_proj(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.kv_proj(x).chunk(2, dim=-1))
        if use_kv_cache:
            if self.kv_cache is not None:
                k, v = torch.cat([self.kv_cache[0], k], 2), torch.cat([self.kv_cache[1], v], 2)
            self.kv_cache = k, v
        T, S = q.shape[2], k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def reset_cache(self):
        self.use_kv_cache = False


def padding_on_the_queries(q, k, v, key_padding_mask=None):
    """hyunwoongko/transformer#40: the padding mask is unsqueezed on the keys' side, and hides queries."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(3), -10000.0)
    return scores.softmax(-1) @ v


# Whether True hides or shows is said: both are usual.
_OPTIONS = {HidesWhatIsValid: {"true_means": "look"}}

ENTRIES = [
    Entry(thing.__name__, thing, _OPTIONS.get(thing, {}), "wrong", mistakes)
    for thing, mistakes in (
        (Width, ("scaled-by-width",)),
        (EmbeddingScale, ("scale-from-model-width",)),
        (DividedByScale, ("scale-multiplied",)),
        (UnscaledCross, ("no-scale",)),
        (FeatureScale, ("scale-from-model-width",)),
        (FoldedHeads, ("heads-split-by-view",)),
        (NoPermute, ("heads-merged-by-view",)),
        (HeadsBeforeBatch, ("batch-items-mixed",)),
        (HidesWhatIsValid, ("inverted-mask",)),
        (Tiled, ("grouped-heads-tiled",)),
        (DropoutInEval, ("dropout-in-eval",)),
        (KeysProjectValues, ("one-projection",)),
        (RotaryAlongHeads, ("positions-cancel",)),
        (RotaryRestarts, ("positions-restart",)),
        (CausalFlagWithCache, ("top-left-causal",)),
        (ResetOfAFlag, ("stale-cache",)),
        (padding_on_the_queries, ("padded-keys-leak",)),
    )
]
# Wrong, and not decided: the mask could follow a convention of its own, and without a softmax over the keys
# queries cannot be told from keys.
ENTRIES += [
    Entry("MaskOfAnotherItem", MaskOfAnotherItem, verdict="wrong", mistakes=("batch-items-mixed",)),
    Entry("SoftmaxOfQueries", SoftmaxOfQueries, verdict="wrong", mistakes=("softmax-over-queries",)),
]
