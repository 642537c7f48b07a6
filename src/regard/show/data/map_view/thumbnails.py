"""Thumbnails of a layer: a small picture of every head, and its sink key.

A picture of 64 × 64 does not need every query of a long text: for each of its rows at most 16 queries are
sampled, evenly spaced. The sink key is that of the head scores (`heads/measures/sink.py`), over the same
queries. This file knows maps; it does not know colours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks.base import grid
from regard.heads.measures.sink import find_sink_keys
from regard.maps import AttentionMap, LinearAttentionMap

SIDE = 64
QUERIES = 16  # sampled for each row of the picture
MOST_WEIGHTS = 1 << 23  # computed for a head: of a very long text fewer queries are sampled
CHUNK = 1 << 22  # weights computed at a time


class Thumbnail(NamedTuple):
    """The thumbnails of one layer's heads."""

    thumbs: NDArray[np.uint8]
    """(H, 64, 64): 0 where no key is visible, else 1 + 254·√mass."""
    sinks: list[dict[str, Any]]
    """For each head its sink key and that key's mean weight: {"key", "share"}; 0 and 0.0 if it has none."""
    queries: int
    """The number of queries that were sampled."""


def thumbnail(m: AttentionMap | LinearAttentionMap, is_token: Tensor | None = None) -> Thumbnail:
    """Return the thumbnails and the sink keys of a map (1, H, T, S).

    `is_token`, boolean (S,), is False for keys that are padding; padding does not count for sinks.
    Of a linear layer the thumbnails show the shares of the magnitudes in their row, and no sink.
    """
    _, H, T, S = m.matrix
    high, wide = min(SIDE, T), min(SIDE, S)
    # torch refuses the maximum of an empty axis.
    if not high or not wide or not H:
        return Thumbnail(np.zeros((H, SIDE, SIDE), np.uint8), [{"key": 0, "share": 0.0}] * H, 0)
    zero = torch.zeros((), dtype=m.dtype, device=m.device)
    # Sample queries, and prepare the matrices that add queries and keys up into cells.
    most = max(4, min(QUERIES, MOST_WEIGHTS // (SIDE * S)))
    rows, line = _sample_evenly([y * T // high for y in range(high + 1)], most)
    to_line = (line == torch.arange(high, device="cpu")[:, None]).to(zero)  # (high, rows)
    edges = torch.tensor(
        [x * S // wide for x in range(1, wide + 1)], device="cpu"
    )  # as `AttentionMap.pool` sets them
    cell = torch.bucketize(torch.arange(S, device="cpu"), edges, right=True)
    to_cell = (cell[:, None] == torch.arange(wide, device="cpu")).to(zero)  # (S, wide)
    is_query = torch.ones(T, dtype=torch.bool, device=m.device)  # queries that count for the sink
    if is_token is not None:
        is_token = is_token.to(m.device)
        # Queries are numbered among the keys: with a cache the first one is not key 0.
        is_query = is_token[m.first_position : m.first_position + T]
    # Add up weights and visible keys, per cell and per key.
    mass = visible_mass = received = seen_by = active = zero
    for first in range(0, len(rows), step := max(1, CHUNK // (H * S))):
        chunk = slice(first, first + step)
        queries = rows[chunk].to(m.device)
        weights = m.tile(queries)[0].to(zero)  # (H, rows, S)
        if isinstance(m, LinearAttentionMap):
            # 1e-30: a row of zeros stays zeros.
            weights = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-30)
        visible = m.mask.allowed(grid(queries, slice(0, S), m.matrix, m.device))[0].to(zero)  # (H or 1, …)
        visible = visible.expand(-1, len(queries), S)
        mass = mass + to_line[:, chunk] @ (weights @ to_cell)
        visible_mass = visible_mass + to_line[:, chunk] @ (visible @ to_cell)
        counted = is_query[queries, None]  # (rows, 1)
        received = received + weights.where(counted, 0).sum(1)  # (H, S)
        seen_by = seen_by + visible.where(counted, 0).sum(1)  # (H or 1, S)
        active = active + visible.amax(-1, keepdim=True).where(counted, 0).sum(1)  # (H or 1, 1)
    # Draw: the mean mass of each cell, stretched to 64 × 64 if the text is short.
    mass = mass / to_line.sum(1, keepdim=True)  # (H, high, wide)
    # The square root, so that faint cells are visible beside a sink.
    picture = (1 + 254 * mass.clamp(0, 1).sqrt()).where(visible_mass > 0, 0)
    source_rows, source_cols = (torch.arange(SIDE, device="cpu") * n // SIDE for n in (high, wide))
    thumbs = picture[:, source_rows][:, :, source_cols].round().to(torch.uint8).cpu().numpy()
    keys, shares = find_sink_keys(received, seen_by, active, is_token)
    if isinstance(m, LinearAttentionMap):
        keys, shares = torch.zeros_like(keys), torch.zeros_like(shares)
    sinks: list[dict[str, Any]] = [
        {"key": int(key), "share": float(share)} for key, share in zip(keys.clamp(min=0), shares, strict=True)
    ]
    return Thumbnail(thumbs, sinks, len(rows))


def _sample_evenly(edges: list[int], most: int) -> tuple[Tensor, Tensor]:
    """Choose at most `most` queries between each edge and the next, evenly spaced.

    Returns the queries, and for each the number of the interval that it belongs to.
    """
    rows, line = [], []
    for y, (first, last) in enumerate(pairwise(edges)):
        count = min(most, last - first)
        rows += [first + (2 * n + 1) * (last - first) // (2 * count) for n in range(count)]
        line += [y] * count
    return torch.tensor(rows, dtype=torch.long, device="cpu"), torch.tensor(
        line, dtype=torch.long, device="cpu"
    )
