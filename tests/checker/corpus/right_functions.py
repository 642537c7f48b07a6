"""Functions of queries, keys and values, in two to four dimensions, with masks and biases of their own."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from tests.checker.corpus import all_right


def dictionary_lookup(X):
    """Attention without weights, on one sequence (T, C)."""
    return torch.softmax(X @ X.T, dim=-1) @ X


def scaled_lookup(x):
    """The same on a batch, with the scale."""
    scores = torch.bmm(x, x.transpose(1, 2)) / math.sqrt(x.size(-1))
    return torch.bmm(F.softmax(scores, dim=-1), x)


def two_dimensions(Q, K, V):
    """One sequence, without a batch."""
    return torch.softmax(Q @ K.transpose(0, 1) / Q.shape[1] ** 0.5, dim=1) @ V


def numpy_batched(query, key, value, mask=None):
    """NumPy arrays of any number of leading dimensions, and a boolean mask."""
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return np.matmul(weights, value)


def value_first(value, key, query, mask=None):
    """The three inputs the other way round."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e20)
    return torch.softmax(scores, dim=-1) @ value


def keyword_only(*, query, key, value, attention_mask=None):
    """Every argument by its name."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)


def symmetric_window(q, k, v):
    """Two keys on either side."""
    at = torch.arange(q.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(at[:, None] - at).abs() <= 2)


def capped_in_silence(q, k, v):
    """Scores pass through a tanh, which no argument says."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(3.0 * torch.tanh(scores / 3.0), dim=-1) @ v


def alibi(q, k, v):
    """A bias by distance, with a slope for every head."""
    H, T, S = q.shape[1], q.shape[2], k.shape[2]
    slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1) / H)
    distance = torch.arange(S)[None, :] - (torch.arange(T)[:, None] + S - T)
    bias = slopes[:, None, None].to(q) * distance.to(q)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(distance > 0, -torch.inf).softmax(-1) @ v


def prefix_attention(q, k, v):
    """The first three positions see each other, the rest is causal."""
    at = torch.arange(q.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(at[:, None] >= at) | (at < 3))


def chunk_attention(q, k, v):
    """Causal within chunks of three."""
    at = torch.arange(q.shape[-2])
    same = at[:, None] // 3 == at // 3
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same & (at[:, None] >= at))


def extra_zero_key(q, k, v):
    """Softmax with one more in its denominator: a query may look at nothing."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    most = scores.amax(-1, keepdim=True).clamp(min=0.0)
    weights = torch.exp(scores - most)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(-most)) @ v


def one_query_at_a_time(q, k, v):
    """Loops over heads and queries."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores = torch.stack([q[b, h, i] @ key for key in k[b, h]]) / q.shape[-1] ** 0.5
                out[b, h, i] = (scores.softmax(0)[:, None] * v[b, h]).sum(0)
    return out


def valid_lengths(queries, keys, values, valid_lens=None):
    """Batches (B, T, D), and how many keys of each count."""
    scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
    if valid_lens is not None:
        beyond = torch.arange(keys.shape[1])[None, None, :] >= valid_lens[:, None, None]
        scores = scores.masked_fill(beyond, -1e6)
    return torch.bmm(F.softmax(scores, dim=-1), values)


def half_inside(q, k, v):
    """The softmax in float32 whatever the inputs are."""
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def flex(q, k, v):
    """FlexAttention with a causal score_mod."""
    from torch.nn.attention.flex_attention import flex_attention

    def causal(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    return flex_attention(q, k, v, score_mod=causal)


def flex_block_mask(q, k, v):
    """FlexAttention with a block mask of a causal window."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < 4)

    mask = create_block_mask(near, None, None, q.shape[-2], k.shape[-2], device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


ENTRIES = all_right(__name__)
