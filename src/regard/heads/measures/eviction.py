"""Eviction loss: the attention to keys that a cache of the first and the latest keys would have evicted.

A policy (sinks, window) keeps the first `sinks` keys and the `window` latest, the query's own among them. A
query at position p loses its weight on every key j with sinks ≤ j ≤ p − window. This is the one definition of
it in Python: the head scores, the Cache view and `gpt.cache_demo` use it. (`eviction.js` computes the same in
a saved page.) It is the policy `streaming` of `regard.policies` at a budget of sinks + window keys, evicted
one by one; the head scores take it from sums that they have already.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_evicted(
    query_positions: Tensor, key_positions: Tensor, window: int, is_sink: Tensor | bool = False
) -> Tensor:
    """Whether a query has lost a key, by their positions; `is_sink` are the first keys, which are kept."""
    is_sink = torch.as_tensor(is_sink, device=key_positions.device)
    return (key_positions <= query_positions - window) & ~is_sink


def eviction_loss(
    weights: Tensor, query_positions: Tensor, windows: Tensor, sinks: int, first_key: int = 0
) -> Tensor:
    """The eviction loss of rows, for one or many windows: (…, rows, windows).

    `weights` (…, rows, S) are those of queries at `query_positions` (rows,) on keys that begin at position
    `first_key`; `windows` (windows,) are sizes and `sinks` is the number of first keys that are kept. Of a
    boolean visibility instead of weights this counts the visible keys that are evicted.

    >>> import torch
    >>> weights = torch.full((1, 8), 0.125)
    >>> eviction_loss(weights, torch.tensor([7]), torch.tensor([2, 4, 8]), sinks=1)
    tensor([[0.6250, 0.3750, 0.0000]], dtype=torch.float64)
    """
    S = weights.shape[-1]
    begin = min(max(sinks - first_key, 0), S)  # evicted keys are those from begin to end
    end = (query_positions[:, None] + 1 - windows - first_key).clamp(begin, S)  # (rows, windows)
    # double: a difference of two cumulative sums of a long row loses digits in float32.
    sums = torch.nn.functional.pad(weights.double().cumsum(-1), (1, 0))  # of the keys before each
    upto = sums.gather(-1, end.expand(*sums.shape[:-1], -1))
    return upto - sums[..., begin, None]


def eviction_loss_from_sums(
    total: Tensor,
    latest: Tensor,
    first_keys: Tensor,
    first_columns: Tensor,
    positions: Tensor,
    window: int,
) -> Tensor:
    """The same from sums over a map, (B, H, T), without its rows.

    `total` is the sum of every row and `latest` its mass on the `window` latest keys, (B, H, T) each;
    `first_keys` (B, n) are the positions of the kept first keys and `first_columns` (B, H, T, n) their
    weights; `positions` (T,) are those of the queries.
    """
    would_be_lost = is_evicted(positions.unsqueeze(-1), first_keys[:, None, None], window)  # (B, 1, T, n)
    kept = first_columns.where(would_be_lost, 0.0).sum(-1)
    return (total - latest - kept).clamp(min=0.0)
