"""Mistakes that public projects have had, in our own words, each with the issue or pull request of it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import wrong
from tests.checker.layers import FourLayers


class Heads(FourLayers):
    def heads(self, x):
        return self.project(x, x, x)


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
        self.key, self.query, self.value = (nn.Linear(n_embed, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(context_length, context_length)), persistent=False)

    def forward(self, x):
        _, T, C = x.shape
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * (1 / math.sqrt(C))
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return scores.softmax(dim=-1) @ self.value(x)


class DividedByScale(Heads):
    """esceptico/perceiver-io#9: divided by D ** -0.5, which multiplies by the root."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.finish(((q @ k.transpose(-2, -1)) / q.shape[-1] ** -0.5).softmax(dim=-1) @ v)


class UnscaledCross(nn.Module):
    """Project-MONAI/GenerativeModels#146: the scale is computed and never applied."""

    def __init__(self, query_dim, cross_dim=20, num_heads=4, head_dim=12):
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads, self.scale = num_heads, 1 / math.sqrt(head_dim)
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k, self.to_v = (nn.Linear(cross_dim, inner, bias=False) for _ in range(2))
        self.to_out = nn.Linear(inner, query_dim)

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = torch.matmul(q, k.transpose(-1, -2)).softmax(dim=-1)
        return self.to_out(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class FeatureScale(Heads):
    """omihub777/ViT-CIFAR#11: the root of all features instead of those of one head."""

    def forward(self, x):
        q, k, v = self.heads(x)
        score = F.softmax(torch.einsum("bhif,bhjf->bhij", q, k) / x.shape[-1] ** 0.5, dim=-1)
        return self.o_proj(torch.einsum("bhij,bhjf->bihf", score, v).flatten(2))


class FoldedHeads(Heads):
    """reczoo/FuxiCTR#30: the heads are split by a view of the batch, without a transpose."""

    def forward(self, x):
        B, T, C = x.shape
        layers, D = (self.q_proj, self.k_proj, self.v_proj), C // self.num_heads
        q, k, v = (layer(x).view(B * self.num_heads, -1, D) for layer in layers)
        weights = F.softmax(torch.matmul(q, k.permute(0, 2, 1)) * D**-0.5, dim=-1)
        return self.o_proj(torch.matmul(weights, v).view(B, T, C))


class NoPermute(Heads):
    """jsbaan/transformer-from-scratch#6, ajhalthor/Transformer-Neural-Network#4: reshaped, not permuted."""

    def forward(self, x):
        q, k, v = self.heads(x)
        values = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v
        return self.o_proj(values.reshape(x.shape))


class HeadsBeforeBatch(Heads):
    """gazelle93/Transformer-Various-Positional-Encoding#1: (B·H) is unfolded as (H, B)."""

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.flatten(0, 1) for t in self.heads(x))
        out = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1) @ v
        return self.o_proj(out.view(self.num_heads, B, T, -1).permute(1, 2, 0, 3).reshape(B, T, C))


class MaskOfAnotherItem(Heads):
    """lsdefine/attention-is-all-you-need-keras#36: heads before the batch, the mask repeated behind it."""

    def forward(self, q, k, v, mask=None):
        B = q.shape[0]
        layers = ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).permute(2, 0, 1, 3).flatten(0, 1)  # (H·B, T, D)
            for layer, x in layers
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat_interleave(self.num_heads, 0), -1e10)
        out = scores.softmax(-1) @ v
        return self.o_proj(out.unflatten(0, (self.num_heads, B)).permute(1, 2, 0, 3).flatten(2))


class SoftmaxOfQueries(Heads):
    """labmlai/annotated_deep_learning_paper_implementations#146: softmax over i in `bihd,bjhd->bijh`."""

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.heads(x))
        attn = (torch.einsum("bihd,bjhd->bijh", q, k) * q.shape[-1] ** -0.5).softmax(dim=1)
        return self.o_proj(torch.einsum("bijh,bjhd->bihd", attn, v).flatten(2))


class HidesWhatIsValid(Heads):
    """InseeFrLab/torchTextClassifiers#92: a mask that marks padding, passed where True means look."""

    def forward(self, x, attention_mask=None):
        mask = None if attention_mask is None else ~attention_mask
        return self.finish(F.scaled_dot_product_attention(*self.heads(x), attn_mask=mask))


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


class DropoutInEval(Heads):
    """karpathy/nanoGPT#240, huggingface/pytorch-image-models#1978: dropout_p does not know eval()."""

    def __init__(self, d_model, num_heads, attn_drop=0.1):
        super().__init__(d_model, num_heads)
        self.attn_drop = nn.Dropout(attn_drop)

    def forward(self, x):
        return self.finish(F.scaled_dot_product_attention(*self.heads(x), dropout_p=self.attn_drop.p))


class KeysProjectValues(Heads):
    """yflyzhang/AnnotatedTransformer#1: the values go through the keys' layer."""

    def forward(self, query, key, value):
        layers = ((self.q_proj, query), (self.k_proj, key), (self.k_proj, value))
        q, k, v = (layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer, x in layers)
        return self.finish(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v)


def _turn(x, start=0):
    """Rotate halves of the last axis by positions along the last axis but one."""
    T, D = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, D, 2, device=x.device).double() / D)
    angles = torch.arange(start, start + T, device=x.device)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _lower(q, k):
    T, S = q.shape[2], k.shape[2]
    return torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)


class RotaryAlongHeads(Heads):
    """mlfoundations/open_lm#4, vukrosic/leo-optimizer#2: rotary positions along the heads."""

    def forward(self, x):
        q, k, v = self.heads(x)
        q, k = (_turn(t.transpose(1, 2)).transpose(1, 2) for t in (q, k))
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class RotaryRestarts(Heads):
    """pytorch/executorch#2010, lucidrains/rotary-embedding-torch#11: the offset is not in the tables."""

    def forward(self, x, cache=None):
        q, k, v = self.heads(x)
        q, k = _turn(q), _turn(k)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=_lower(q, k))), (k, v)


class CausalFlagWithCache(Heads):
    """time-series-foundation-models/lag-llama#81: is_causal=True with one query and many keys."""

    def __init__(self, n_embd, n_head):
        super().__init__(n_embd, n_head)
        self.kv_cache = None

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x, use_kv_cache=False):
        q, k, v = self.heads(x)
        if use_kv_cache:
            if self.kv_cache is not None:
                k, v = torch.cat([self.kv_cache[0], k], 2), torch.cat([self.kv_cache[1], v], 2)
            self.kv_cache = k, v
        return self.finish(self.attend(q, k, v))

    def reset_cache(self):
        self.kv_cache = None


class ResetOfAFlag(CausalFlagWithCache):
    """time-series-foundation-models/lag-llama#81: the reset leaves the keys of the last series."""

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=_lower(q, k))

    def reset_cache(self):
        self.use_kv_cache = False


def padding_on_the_queries(q, k, v, key_padding_mask=None):
    """hyunwoongko/transformer#40: the padding mask is unsqueezed on the keys' side, and hides queries."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(3), -10000.0)
    return scores.softmax(-1) @ v


ENTRIES = [
    wrong(Width, "scaled-by-width"),
    wrong(EmbeddingScale, "scale-from-model-width"),
    wrong(DividedByScale, "scale-multiplied"),
    wrong(UnscaledCross, "no-scale"),
    wrong(FeatureScale, "scale-from-model-width"),
    wrong(FoldedHeads, "heads-split-by-view"),
    wrong(NoPermute, "heads-merged-by-view"),
    wrong(HeadsBeforeBatch, "batch-items-mixed"),
    # Whether True hides or shows is said: both are usual.
    wrong(HidesWhatIsValid, "inverted-mask", true_means="look"),
    wrong(Tiled, "grouped-heads-tiled"),
    wrong(DropoutInEval, "dropout-in-eval"),
    wrong(KeysProjectValues, "one-projection"),
    wrong(RotaryAlongHeads, "positions-cancel"),
    wrong(RotaryRestarts, "positions-restart"),
    wrong(CausalFlagWithCache, "top-left-causal"),
    wrong(ResetOfAFlag, "stale-cache"),
    wrong(padding_on_the_queries, "padded-keys-leak"),
    wrong(MaskOfAnotherItem, "batch-items-mixed"),
    wrong(SoftmaxOfQueries, "softmax-over-queries"),
]
