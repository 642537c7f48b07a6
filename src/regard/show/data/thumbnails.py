"""A layer at a glance: a small picture of every head, and its sink key.

Long texts are sampled for a picture of 64 × 64: of each of its rows of cells at most 16 queries are computed,
evenly chosen. The sink key is that of the head scores (`heads/sink.py`), over the same queries. This file
knows maps; it does not know colours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks.base import grid
from regard.heads.sink import find_sink_keys
from regard.maps import AttentionMap

SIDE = 64
QUERIES = 16  # looked at for each row of the picture
ENOUGH = 1 << 23  # weights of a head: of a very long text fewer queries are looked at
LARGE = 1 << 22  # weights that are computed at a time


class Thumbnail(NamedTuple):
    thumbs: NDArray[np.uint8]
    """(H, 64, 64): 0 where nothing may be seen, else 1 + 254·√mass."""
    sinks: list[dict[str, float]]
    """For each head its sink key and that key's mean weight: {"key", "share"}; 0 and 0.0 if it has none."""
    queries: int
    """The number of queries that were computed."""


def glance(m: AttentionMap, is_token: Tensor | None = None) -> Thumbnail:
    """The thumbnails and sink keys of a map (1, H, T, S).

    `is_token`, boolean (S,), is False for keys that are padding; padding does not count for sinks.
    """
    _, H, T, S = m.matrix
    high, wide = min(SIDE, T), min(SIDE, S)
    if not high or not wide or not H:
        return Thumbnail(np.zeros((H, SIDE, SIDE), np.uint8), [{"key": 0, "share": 0.0}] * H, 0)
    most = max(4, min(QUERIES, ENOUGH // (SIDE * S)))
    rows, line = _evenly([y * T // high for y in range(high + 1)], most)
    to_line = (line == torch.arange(high)[:, None]).to(m.lse)  # (high, rows)
    edges = torch.tensor([x * S // wide for x in range(1, wide + 1)])  # as `map.pool` sets them
    cell = torch.bucketize(torch.arange(S), edges, right=True)
    to_cell = (cell[:, None] == torch.arange(wide)).to(m.lse)  # (S, wide)
    counts = torch.ones(T, dtype=torch.bool, device=m.device)  # queries that count for the sink
    if is_token is not None:
        is_token = is_token.to(m.device)
        counts = is_token[m.first_position : m.first_position + T]
    mass = seen = received = seeing = active = m.lse.new_zeros(())
    for first in range(0, len(rows), step := max(1, LARGE // (H * S))):
        some = slice(first, first + step)
        here = rows[some].to(m.device)
        weights = m.tile(here)[0].to(m.lse)  # (H, rows, S)
        visible = m.mask.allowed(grid(here, slice(0, S), m.matrix, m.device))[0].to(m.lse)  # (H or 1, …)
        visible = visible.expand(-1, len(here), S)
        mass = mass + to_line[:, some] @ (weights @ to_cell)
        seen = seen + to_line[:, some] @ (visible @ to_cell)
        counted = counts[here, None]  # (rows, 1)
        received = received + weights.where(counted, 0).sum(1)  # (H, S)
        seeing = seeing + visible.where(counted, 0).sum(1)  # (H or 1, S)
        active = active + visible.amax(-1, keepdim=True).where(counted, 0).sum(1)  # (H or 1, 1)
    mass = mass / to_line.sum(1, keepdim=True)  # (H, high, wide)
    picture = (1 + 254 * mass.clamp(0, 1).sqrt()).where(seen > 0, 0)
    shown = [torch.arange(SIDE) * n // SIDE for n in (high, wide)]  # a short text is stretched
    thumbs = picture[:, shown[0]][:, :, shown[1]].round().to(torch.uint8).cpu().numpy()
    keys, shares = find_sink_keys(received, seeing, active, is_token)
    sinks = [
        {"key": int(k), "share": float(share)} for k, share in zip(keys.clamp(min=0), shares, strict=True)
    ]
    return Thumbnail(thumbs, sinks, len(rows))


def _evenly(edges: list[int], most: int) -> tuple[Tensor, Tensor]:
    """At most `most` queries between each edge and the next, and between which edges they stand."""
    rows, line = [], []
    for y, (first, last) in enumerate(pairwise(edges)):
        count = min(most, last - first)
        rows += [first + (2 * n + 1) * (last - first) // (2 * count) for n in range(count)]
        line += [y] * count
    return torch.tensor(rows, dtype=torch.long), torch.tensor(line, dtype=torch.long)
