"""Caches of the usual shapes, right and wrong: past_key_value, layer_past, and the kv_cache of gpt-fast."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.checker.corpus import right, wrong


def split(x, heads):
    return x.unflatten(-1, (heads, -1))


class PastKeyValue(nn.Module):
    """As minimind: rotary tables and a pair of past keys and values come as arguments, (B, T, H, D)."""

    top_left = False

    def __init__(self, hidden_size=48, num_attention_heads=4, num_key_value_heads=2):
        super().__init__()
        self.heads, self.groups = num_attention_heads, num_key_value_heads
        D = hidden_size // num_attention_heads
        self.q_proj, self.o_proj = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.k_proj, self.v_proj = (nn.Linear(hidden_size, num_key_value_heads * D) for _ in range(2))

    def forward(self, x, position_embeddings, past_key_value=None, use_cache=False, attention_mask=None):
        q = split(self.q_proj(x), self.heads)
        k, v = (split(p(x), self.groups) for p in (self.k_proj, self.v_proj))
        cos, sin = (table[: x.shape[1], None] for table in position_embeddings)
        q, k = (y * cos + torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * sin for y in (q, k))
        if past_key_value is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(past_key_value, (k, v), strict=True))
        past = (k, v) if use_cache else None
        k, v = (y.repeat_interleave(self.heads // self.groups, 2).transpose(1, 2) for y in (k, v))
        q = q.transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        T, S = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(T, S).triu(1 if self.top_left else 1 + S - T) == 1, -torch.inf)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None] == 0, -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.o_proj(y), past


class TopLeft(PastKeyValue):
    top_left = True


class LayerPast(nn.Module):
    """As GPT-2 of old: a pair of past keys and values, (B, H, T, D), and a config."""

    def __init__(self, config):
        super().__init__()
        self.config, self.n_head = config, config.n_head
        self.c_attn, self.c_proj = (nn.Linear(config.n_embd, n * config.n_embd) for n in (3, 1))

    def forward(self, hidden_states, layer_past=None, use_cache=False):
        q, k, v = (split(y, self.n_head).transpose(1, 2) for y in self.c_attn(hidden_states).chunk(3, -1))
        if layer_past is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(layer_past, (k, v), strict=True))
        T, S = q.shape[2], k.shape[2]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(T, S))
        return self.c_proj(y.transpose(1, 2).flatten(2)), (k, v) if use_cache else None

    def visible(self, T, S):
        return torch.ones(T, S, dtype=torch.bool).tril(S - T)


class TopLeftOfSeveral(LayerPast):
    """One token at a time is right, and a chunk of several is not."""

    def visible(self, T, S):
        return torch.ones(T, S, dtype=torch.bool).tril(S - T if T == 1 else 0)


class LastOfPieceLost(LayerPast):
    def forward(self, hidden_states, layer_past=None, use_cache=False):
        output, cache = super().forward(hidden_states, layer_past, use_cache)
        return output, None if cache is None else tuple(x[:, :, :-1] for x in cache)


class KVCache(nn.Module):
    def __init__(self, max_batch_size, max_seq_length, n_heads, head_dim, dtype=torch.bfloat16):
        super().__init__()
        for name in ("k_cache", "v_cache"):
            shape = (max_batch_size, n_heads, max_seq_length, head_dim)
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))

    def update(self, input_pos, k, v):
        self.k_cache[:, :, input_pos], self.v_cache[:, :, input_pos] = k, v
        return self.k_cache, self.v_cache


class Preallocated(nn.Module):
    """As gpt-fast: the model puts a cache into `kv_cache`, and passes a mask over all its slots."""

    def __init__(self, dim=48, n_head=4, n_local_heads=2):
        super().__init__()
        self.n_head, self.n_local_heads, self.head_dim = n_head, n_local_heads, dim // n_head
        self.kv_cache = None
        self.wqkv = nn.Linear(dim, (n_head + 2 * n_local_heads) * self.head_dim)
        self.wo = nn.Linear(dim, dim)

    def position(self, input_pos):
        return input_pos

    def forward(self, x, mask, input_pos=None):
        kv = self.n_local_heads * self.head_dim
        q, k, v = self.wqkv(x).split([self.n_head * self.head_dim, kv, kv], dim=-1)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (q, k, v))
        if self.kv_cache is not None:
            k, v = self.kv_cache.update(self.position(input_pos), k, v)
        k, v = (y.repeat_interleave(self.n_head // self.n_local_heads, 1) for y in (k, v))
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class AtSlotZero(Preallocated):
    def position(self, input_pos):
        return input_pos - input_pos[0]


ENTRIES = [
    right(PastKeyValue),
    right(LayerPast),
    right(Preallocated),
    wrong(TopLeft, "top-left-causal"),
    wrong(TopLeftOfSeveral, "top-left-causal"),
    wrong(LastOfPieceLost, "cached-key-lost"),
    wrong(AtSlotZero, "cache-overwritten"),
]
