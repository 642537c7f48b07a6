"""The eviction loss of every head of a layer, for many cache policies at once.

The loss itself is defined in `heads/eviction.py`; this file chooses policies and queries, so that a reader
can slide from one policy to another. Of a long text it samples queries evenly. `eviction.js` computes the
same in a saved page.
"""

from __future__ import annotations

from typing import Any

import torch

from regard.heads.measures.eviction import eviction_loss
from regard.maps import AttentionMap, LinearAttentionMap

QUERIES = 256  # sampled at most
SINKS = (0, 1, 2, 4, 8, 16)  # numbers of first keys that a cache may keep


def windows(S: int) -> list[int]:
    """Return the window sizes to try on S keys: 4, 6, 8, 12, 16, 24 … below S.

    >>> windows(20)
    [4, 6, 8, 12, 16]
    """
    sizes, size = list[int](), 4
    while size < S:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [size for size in sizes if size < S]


def layer_eviction(m: AttentionMap | LinearAttentionMap) -> dict[str, Any]:
    """Return the mean eviction loss of every head of a map (1, H, T, S), for every window and sink count.

    The result is {"windows", "sinks", "lost": [head][window][sinks], "queries", "ahead"}. The mean is over
    the queries that would lose a key visible to them, and None where there are none. `ahead` says whether
    any query sees a later key, which attention with a cache cannot. A linear layer keeps no keys, and loses
    none.
    """
    _, H, T, S = m.matrix
    sizes = windows(S)
    if isinstance(m, LinearAttentionMap):
        nothing = [[[None] * len(SINKS) for _ in sizes] for _ in range(H)]
        return {"windows": sizes, "sinks": list(SINKS), "lost": nothing, "queries": 0, "ahead": False}
    rows = torch.arange(T, device="cpu")
    if T > QUERIES:
        # The middles of equal intervals, in whole numbers, as eviction.js computes them.
        rows = (2 * torch.arange(QUERIES, device="cpu") + 1) * T // (2 * QUERIES)
    positions = rows + m.first_position
    window_sizes = torch.tensor(sizes, dtype=torch.long, device="cpu")
    lost: list[list[list[float | None]]] = []
    ahead = False
    for h in range(H):
        head, at = m[:, h : h + 1], rows.to(m.device)
        weights = head.tile(at).reshape(len(rows), S).cpu()
        # A mask may have an axis of heads or sequences of size 1, and rows that are all alike.
        visible = head.mask.tile(at, slice(0, S), head.matrix, device=m.device)
        visible = visible.reshape(-1, *visible.shape[-2:])[0].expand(len(rows), S).cpu()
        ahead = ahead or bool((visible & (torch.arange(S, device="cpu") > positions[:, None])).any())
        policies = []
        for sinks in SINKS:
            loss = eviction_loss(weights, positions, window_sizes, sinks)  # (rows, windows)
            loses = eviction_loss(visible, positions, window_sizes, sinks) > 0
            policies.append((loss * loses).sum(0) / loses.sum(0))
        table = torch.stack(policies, -1)  # (windows, sinks)
        # x != x is NaN, which JSON does not have; below 0 are the rounding errors of a sum of weights.
        lost.append([[None if x != x else max(0.0, x) for x in row] for row in table.tolist()])
    return {"windows": sizes, "sinks": list(SINKS), "lost": lost, "queries": len(rows), "ahead": ahead}
