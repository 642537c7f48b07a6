"""Lesson 13, grouped heads: several query heads share one head of keys and values, and the cache shrinks.

A cache holds the keys and values of every layer, head and token. Queries are not in it. So a model may have
many query heads and few key/value heads: with 32 and 8 of them each key/value head serves a group of four
query heads, and the cache is four times smaller.
"""

import math

import torch


def cache_bytes(layers, kv_heads, head_dim, tokens, bytes_per_number=2):
    """How many bytes the cache of a text takes: its keys and its values in every layer."""
    return 2 * layers * kv_heads * head_dim * tokens * bytes_per_number  #: a product of six numbers


def grouped_attention(q, k, v):
    """Causal attention of H query heads, q (B, H, T, D), to G key/value heads, k and v (B, G, S, D).

    Neighbours share: the first H / G query heads read key/value head 0, the next ones head 1. The new tokens
    are the last T of S, as in lesson 9. Returns the output (B, H, T, D).
    """
    H, T, D = q.shape[1:]
    G, S = k.shape[1:3]
    k = k.repeat_interleave(H // G, dim=1)  #: the keys that each query head reads, (B, H, S, D)
    v = v.repeat_interleave(H // G, dim=1)  #: the values that each query head reads, (B, H, S, D)
    visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(~visible, -torch.inf)  # (B, H, T, S)
    return torch.softmax(scores, dim=-1) @ v  # (B, H, T, D)


def pool_heads(weight, num_heads, kv_heads):
    """A key or value projection for fewer heads, made from the trained one, weight (num_heads * D, d_model).

    The rows of head 0 come first, then those of head 1. Each new head is the mean of the neighbours that it
    replaces. Returns (kv_heads * D, d_model).
    """
    d_model = weight.shape[-1]
    groups = weight.view(kv_heads, num_heads // kv_heads, -1, d_model)  #: (group, head in it, D, d_model)
    pooled = groups.mean(dim=1)  #: the mean over the heads of a group, (kv_heads, D, d_model)
    return pooled.flatten(0, 1)  # (kv_heads * D, d_model)


# Predict, then look: Llama 3 70B has 80 layers, 64 query heads and 8 key/value heads of width 128. With 2
# bytes for each number its cache of 8,192 tokens takes 2.7 gigabytes. How many gigabytes would it take if
# every query head had keys and values of its own?
gigabytes_without_groups = 21.5  #: your prediction


if __name__ == "__main__":
    for name, layers, kv_heads, head_dim in (
        ("GPT-2 small", 12, 12, 64),
        ("Llama 2 7B", 32, 32, 128),
        ("Llama 3.1 8B", 32, 8, 128),
        ("Falcon 7B", 32, 1, 64),
    ):
        megabytes = cache_bytes(layers, kv_heads, head_dim, tokens=1000) / 1e6
        print(f"{name:13} {megabytes:7.1f} MB for 1,000 tokens")
    q, k = torch.randn(1, 8, 5, 4), torch.randn(1, 2, 5, 4)
    print("8 query heads on 2 key/value heads:", tuple(grouped_attention(q, k, k).shape))
