"""Eviction loss: the attention on keys that a cache of the first and the latest keys would have evicted.

It is computed for one layer and many cache sizes at once, so that a reader can slide from one to another. On
a long text it is estimated from evenly spaced queries. This file knows maps; `eviction.js` computes the same
in a saved page.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.maps.sweep import first_position

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


def eviction_loss(m: AttentionMap) -> dict[str, Any]:
    """Return the mean eviction loss of every head of a map (1, H, T, S), for every window and sink count.

    The result is {"windows", "sinks", "lost": [head][window][sinks], "queries", "ahead"}. The mean is over
    the queries that would lose a key visible to them, and None where there are none. `ahead` says whether
    any query sees a later key, which attention with a cache cannot.
    """
    _, H, T, S = m.matrix
    sizes = windows(S)
    rows = torch.arange(T)
    if T > QUERIES:
        rows = (2 * torch.arange(QUERIES) + 1) * T // (2 * QUERIES)
    positions = rows + first_position(m)  # of the queries among the keys
    ends = (positions[:, None] + 1 - torch.tensor(sizes, dtype=torch.long)).clamp(0, S)  # (rows, windows)
    lost: list[list[list[float | None]]] = []
    ahead = False
    for h in range(H):
        # One head's weights and visible keys, as running sums over the keys.
        head_map, queries = m[:, h : h + 1], rows.to(m.device)
        weights = head_map.tile(queries).reshape(len(rows), S).double().cpu()
        visible = head_map.mask.tile(queries, slice(0, S), head_map.matrix, device=m.device)
        visible = visible.reshape(-1, *visible.shape[-2:])[0].expand(len(rows), S).double().cpu()
        ahead = ahead or bool((visible * (torch.arange(S) > positions[:, None])).any())
        mass, keys = _running_sums(weights), _running_sums(visible)  # (rows, S + 1)
        # Evicted keys are those from the number of sinks up to where the window begins.
        by_sinks = []
        for sinks in (min(n, S) for n in SINKS):
            end = ends.clamp(min=sinks)
            evicted_mass = mass.gather(1, end) - mass[:, sinks : sinks + 1]  # (rows, windows)
            evicts = keys.gather(1, end) > keys[:, sinks : sinks + 1]
            by_sinks.append((evicted_mass * evicts).sum(0) / evicts.sum(0))
        table = torch.stack(by_sinks, -1)  # (windows, sinks)
        lost.append([[None if x != x else max(0.0, x) for x in row] for row in table.tolist()])
    return {"windows": sizes, "sinks": list(SINKS), "lost": lost, "queries": len(rows), "ahead": ahead}


def _running_sums(x: Tensor) -> Tensor:
    """Return the sums of all entries before each one, and of all: (…, n) becomes (…, n + 1)."""
    return torch.nn.functional.pad(x.cumsum(-1), (1, 0))
