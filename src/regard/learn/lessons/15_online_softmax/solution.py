"""Lesson 15, online softmax: attention a block of keys at a time, and never the whole row of scores.

Softmax needs the largest score and the sum of all exponentials, and both seem to need the whole row. They do
not: keep the largest score so far, and shrink the sums so far when a larger one comes. This is how flash
attention works, in about twenty lines.
"""

import math

import torch


def flash_attention(q, k, v, block_size):
    """Attention of queries q (…, T, D) to keys k (…, S, D) and values v (…, S, E), without a mask.

    Returns the output (…, T, E) and the log-sum-exp of each query's scores (…, T).
    """
    highest = q.new_full(q.shape[:-1], -torch.inf)  # the largest score so far, (…, T)
    total = q.new_zeros(q.shape[:-1])  # the sum of exponentials so far, (…, T)
    mixed = q.new_zeros(*q.shape[:-1], v.shape[-1])  # exponentials times values so far, (…, T, E)
    for start in range(0, k.shape[-2], block_size):
        k_block = k[..., start : start + block_size, :]  # (…, block, D)
        v_block = v[..., start : start + block_size, :]  # (…, block, E)
        scores = q @ k_block.mT / math.sqrt(q.shape[-1])  # (…, T, block)
        new_highest = torch.maximum(highest, scores.amax(dim=-1))  #: the largest score by now, (…, T)
        shrink = torch.exp(highest - new_highest)  #: what the sums so far are multiplied by, (…, T)
        exponentials = torch.exp(scores - new_highest[..., None])  #: of this block's scores, (…, T, block)
        total = total * shrink + exponentials.sum(dim=-1)  #: the sum with this block, (…, T)
        mixed = mixed * shrink[..., None] + exponentials @ v_block  #: the mix with this block, (…, T, E)
        highest = new_highest
    out = mixed / total[..., None]  #: the output, (…, T, E)
    lse = highest + torch.log(total)  #: the logarithm of the sum of all exp(score), (…, T)
    return out, lse


def merge(out_a, lse_a, out_b, lse_b):
    """Attention to all keys, from attention to some of them (a) and to the others (b).

    out_a and out_b are (…, T, E), lse_a and lse_b (…, T). Returns the output and the log-sum-exp of both.
    """
    lse = torch.logaddexp(lse_a, lse_b)  #: the logarithm of exp(lse_a) + exp(lse_b), (…, T)
    share_a = torch.exp(lse_a - lse)  #: how much of all weight is on the keys of a, (…, T)
    share_b = torch.exp(lse_b - lse)  #: how much is on the keys of b, (…, T)
    out = share_a[..., None] * out_a + share_b[..., None] * out_b  #: the output, (…, T, E)
    return out, lse


# Predict, then look: one head reads 8,192 tokens. How many megabytes (millions of bytes) are its scores, all
# of them at once, with 4 bytes for each?
megabytes_of_scores = 268  #: your prediction


if __name__ == "__main__":
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 8, 4)
    whole = torch.softmax(q @ k.mT / 2, dim=-1) @ v
    for block_size in (8, 3, 1):
        out, lse = flash_attention(q, k, v, block_size)
        print(f"blocks of {block_size}: largest difference {(out - whole).abs().max().item():.1e}")
    a, b = flash_attention(q, k[:5], v[:5], 2), flash_attention(q, k[5:], v[5:], 2)
    print(f"two parts, merged: largest difference {(merge(*a, *b)[0] - whole).abs().max().item():.1e}")
