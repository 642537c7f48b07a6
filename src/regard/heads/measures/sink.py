"""The sink key of a head: the key that receives the most attention on average.

This is the one definition of it: the head scores, the Map view and saved pages use it. It knows sums over
queries; it does not know maps.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

SINK = 0.3  # a key that receives more than this on average is a sink (Gu 2024)
MIN_QUERIES = 16  # fewer say nothing: a head that attends to the query's own token gives the last key all


class SinkKeys(NamedTuple):
    """For each head the key that receives the most on average, and its mean weight."""

    keys: Tensor  # (…) −1 if no key is seen by enough queries
    shares: Tensor  # (…) 0 where the key is −1


def find_sink_keys(
    received: Tensor, seeing_queries: Tensor, num_queries: Tensor, is_token: Tensor | None = None
) -> SinkKeys:
    """Find the key with the largest mean weight over the queries that see it.

    `received` (…, S) is the attention that every key receives, summed over queries, and `seeing_queries`
    (…, S) the number of those queries that see the key. A key counts if 16 queries see it, or more than half
    of the `num_queries` (…, 1) that see anything, whichever is fewer. `is_token` (…, S), if given, is False
    for keys that are padding.

    >>> import torch
    >>> received, seeing = torch.tensor([6.0, 1.0, 1.0]), torch.tensor([20, 19, 1])
    >>> find_sink_keys(received, seeing, torch.tensor([20]))  # key 2 is seen by one query only
    SinkKeys(keys=tensor(0), shares=tensor(0.3000))
    """
    # More than half, so that of a short text no key counts that only its last queries see.
    needed = (num_queries // 2 + 1).clamp(max=MIN_QUERIES)
    counts = (seeing_queries >= needed) & (seeing_queries > 0)
    if is_token is not None:
        counts = counts & is_token
    shares, keys = (received / seeing_queries.clamp(min=1)).masked_fill(~counts, -1.0).max(-1)
    return SinkKeys(keys.masked_fill(shares < 0, -1), shares.clamp(min=0.0))
