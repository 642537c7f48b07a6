"""A layer at a glance: a small picture of every head, and where its sink is.

Long texts are not read whole for a picture of 64 × 64: of each of its rows of cells at most 16 queries are
looked at, evenly chosen. This file knows maps; it does not know colours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.maps import AttentionMap

SIDE = 64
QUERIES = 16  # looked at for each row of the picture


class Glance(NamedTuple):
    thumbs: NDArray[np.uint8]
    """(H, 64, 64): 0 where nothing may be seen, else 1 + 254·√mass."""
    sinks: list[dict[str, float]]
    """For each head the key that gets the most on average, and how much: {"key", "share"}."""
    queries: int
    """How many queries were looked at."""


def glance(m: AttentionMap) -> Glance:
    """A map (1, H, T, S) at a glance."""
    _, H, T, S = m.matrix
    high, wide = min(SIDE, T), min(SIDE, S)
    edges = [y * T // max(high, 1) for y in range(high + 1)]
    rows, line = _evenly(edges)
    cell = torch.arange(S) * wide // max(S, 1)
    shown = [torch.arange(SIDE) * n // SIDE for n in (high, wide)]  # a short text is stretched
    thumbs = np.zeros((H, SIDE, SIDE), np.uint8)
    sinks: list[dict[str, float]] = []
    for h in range(H):
        one = m[:, h : h + 1]
        mass, seen = torch.zeros(high, wide), torch.zeros(high, wide)
        received, looked = torch.zeros(S, dtype=torch.float64), torch.zeros(S, dtype=torch.float64)
        for first in range(0, len(rows), 256):
            some = slice(first, first + 256)
            here = rows[some].to(m.device)
            weights = one.tile(here).reshape(len(here), S).float().cpu()
            visible = one.mask.tile(here, slice(0, S), one.matrix, device=m.device)
            visible = visible.reshape(-1, *visible.shape[-2:])[0].float().cpu()
            for kept, new in ((mass, weights), (seen, visible)):
                kept.index_add_(0, line[some], torch.zeros(len(here), wide).index_add_(1, cell, new))
            received += weights.sum(0)
            looked += visible.sum(0)
        mass /= torch.bincount(line, minlength=high).clamp(min=1)[:, None]
        if high and wide:
            picture = (1 + 254 * mass.clamp(0, 1).sqrt()).where(seen > 0, 0)[shown[0]][:, shown[1]]
            thumbs[h] = picture.round().to(torch.uint8).numpy()
        sinks.append(_sink(received, looked))
    return Glance(thumbs, sinks, len(rows))


def _evenly(edges: list[int]) -> tuple[Tensor, Tensor]:
    """At most 16 queries between each edge and the next, and between which edges they stand."""
    rows, line = [], []
    for y, (first, last) in enumerate(pairwise(edges)):
        count = min(QUERIES, last - first)
        rows += [first + (2 * n + 1) * (last - first) // (2 * count) for n in range(count)]
        line += [y] * count
    return torch.tensor(rows, dtype=torch.long), torch.tensor(line, dtype=torch.long)


def _sink(received: Tensor, looked: Tensor) -> dict[str, float]:
    """The key with the largest mean weight, among those that at least half as many queries see as any."""
    share = (received / looked.clamp(min=1)).where(looked * 2 >= looked.max(), 0)
    key = int(share.argmax()) if len(share) else 0
    return {"key": key, "share": float(share[key]) if len(share) else 0.0}
