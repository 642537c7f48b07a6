"""What a cache that forgets would lose: the attention that falls on keys which are neither first nor latest.

For one layer and many policies at once, so that a reader can slide from one to another. On a long text some
queries, evenly chosen, stand for all. This file knows maps; `eviction.js` computes the same in a saved page.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.maps.sweep import first_position

QUERIES = 256  # looked at, at most
SINKS = (0, 1, 2, 4, 8, 16)


def windows(S: int) -> list[int]:
    """Sizes of a window worth trying on S keys: 4, 6, 8, 12, 16, 24 … below S.

    >>> windows(20)
    [4, 6, 8, 12, 16]
    """
    sizes, size = list[int](), 4
    while size < S:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [size for size in sizes if size < S]


def eviction(m: AttentionMap) -> dict[str, Any]:
    """Of a map (1, H, T, S), for each head, window and number of first keys that are kept: the mean loss.

    {"windows", "sinks", "lost": (head, window, sinks), "queries", "ahead"}. The mean is over the queries that
    would lose a key they may look at; None where there are none. `ahead`: some look ahead, as with no cache.
    """
    _, H, T, S = m.matrix
    sizes = windows(S)
    rows = torch.arange(T)
    if T > QUERIES:
        rows = (2 * torch.arange(QUERIES) + 1) * T // (2 * QUERIES)
    places = rows + first_position(m)  # where the queries stand among the keys
    ends = (places[:, None] + 1 - torch.tensor(sizes, dtype=torch.long)).clamp(0, S)  # (rows, windows)
    lost: list[list[list[float | None]]] = []
    ahead = False
    for h in range(H):
        one, at = m[:, h : h + 1], rows.to(m.device)
        weights = one.tile(at).reshape(len(rows), S).double().cpu()
        visible = one.mask.tile(at, slice(0, S), one.matrix, device=m.device)
        visible = visible.reshape(-1, *visible.shape[-2:])[0].expand(len(rows), S).double().cpu()
        ahead = ahead or bool((visible * (torch.arange(S) > places[:, None])).any())
        mass, keys = _sums(weights), _sums(visible)  # up to before each key, (rows, S + 1)
        policies = []
        for first in (min(n, S) for n in SINKS):
            here = ends.clamp(min=first)
            gone = mass.gather(1, here) - mass[:, first : first + 1]  # (rows, windows)
            had = keys.gather(1, here) > keys[:, first : first + 1]
            policies.append((gone * had).sum(0) / had.sum(0))
        table = torch.stack(policies, -1)  # (windows, sinks)
        lost.append([[None if x != x else max(0.0, x) for x in row] for row in table.tolist()])
    return {"windows": sizes, "sinks": list(SINKS), "lost": lost, "queries": len(rows), "ahead": ahead}


def _sums(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.cumsum(-1), (1, 0))
