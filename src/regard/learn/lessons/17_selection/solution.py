"""Lesson 17, choosing keys: each query reads the few blocks of keys that may hold its largest scores.

A window reads what is near, whatever the query asks. A selection looks first: a summary of each block says
how large a score in it can be, and only the best blocks are read. What is lost by that can be said exactly.
"""

import math

import torch


def block_bounds(q, k, block_size):
    """How large the scores of a query with the keys of a block can be: (T, blocks), never too small.

    q is (T, D) and k is (S, D), with S a multiple of block_size.
    """
    D = q.shape[-1]
    blocks = k.view(-1, block_size, D)  # (blocks, block_size, D)
    lowest = blocks.amin(dim=1)  #: the smallest number of each channel in a block, (blocks, D)
    highest = blocks.amax(dim=1)  #: the largest number of each channel in a block, (blocks, D)
    q = q[:, None, :]  # (T, 1, D)
    products = torch.maximum(q * lowest, q * highest)  #: the larger product of each channel, (T, blocks, D)
    return products.sum(dim=-1) / math.sqrt(D)


def selected_attention(q, k, v, block_size, count):
    """Attention of q (T, D) to the `count` best blocks of k (S, D) and v (S, E), others for each query.

    Returns the output (T, E) and the log-sum-exp of the scores that were kept, (T,).
    """
    bounds = block_bounds(q, k, block_size)  # (T, blocks)
    chosen = bounds.topk(count, dim=-1).indices  #: the numbers of the best blocks, (T, count)
    kept = torch.zeros_like(bounds, dtype=torch.bool).scatter(-1, chosen, True)  # (T, blocks)
    visible = kept.repeat_interleave(block_size, dim=-1)  #: True for each key of a kept block, (T, S)
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (T, S)
    scores = scores.masked_fill(~visible, -torch.inf)  #: only the kept ones are left, (T, S)
    out = torch.softmax(scores, dim=-1) @ v  # (T, E)
    lse = torch.logsumexp(scores, dim=-1)  # (T,)
    return out, lse


def lost_weight(lse_kept, lse):
    """How much of all weight is on keys that were not read, from 0 to 1.

    lse_kept is the log-sum-exp of the scores that were kept, lse that of all scores, (T,) each.
    """
    return 1 - torch.exp(lse_kept - lse)  #: the share of the others


# Predict, then look: of 16 keys one has the score 5, the others 0. The block of 4 keys with the 5 in it is
# read, the other three blocks are not. How much of the weight is lost, from 0 to 1?
weight_that_is_lost = 0.073  #: your prediction


if __name__ == "__main__":
    torch.manual_seed(0)
    k = (torch.randn(8, 1, 16) + 0.5 * torch.randn(8, 8, 16)).flatten(0, 1)  # neighbours are alike, (64, 16)
    q, v = k[[20, 45]], torch.randn(64, 16)  # two queries, each of which looks for one key
    scores = q @ k.mT / 4
    lse = torch.logsumexp(scores, dim=-1)
    print("weight that the two queries lose")
    for count in (1, 2, 4, 8):
        out, lse_kept = selected_attention(q, k, v, block_size=8, count=count)
        latest = torch.logsumexp(scores[:, -8 * count :], dim=-1)
        best, blind = lost_weight(lse_kept, lse), lost_weight(latest, lse)
        print(f"{count} of 8 blocks: the best {best[0]:.2f} {best[1]:.2f}, ", end="")
        print(f"the latest {blind[0]:.2f} {blind[1]:.2f}")
