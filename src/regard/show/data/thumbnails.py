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

from regard.attention.masks.base import grid
from regard.maps import AttentionMap

SIDE = 64
QUERIES = 16  # looked at for each row of the picture
ENOUGH = 1 << 23  # weights of a head: of a very long text fewer queries are looked at
LARGE = 1 << 22  # weights that are computed at a time


class Thumbnail(NamedTuple):
    thumbs: NDArray[np.uint8]
    """(H, 64, 64): 0 where nothing may be seen, else 1 + 254·√mass."""
    sinks: list[dict[str, float]]
    """For each head the key that gets the most on average, and how much: {"key", "share"}."""
    queries: int
    """How many queries were looked at."""


def glance(m: AttentionMap) -> Thumbnail:
    """A map (1, H, T, S) at a glance."""
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
    mass = seen = received = looked = m.lse.new_zeros(())
    for first in range(0, len(rows), step := max(1, LARGE // (H * S))):
        some = slice(first, first + step)
        here = rows[some].to(m.device)
        weights = m.tile(here)[0].to(m.lse)  # (H, rows, S)
        visible = m.mask.allowed(grid(here, slice(0, S), m.matrix, m.device))[0].to(m.lse)  # (H or 1, …)
        visible = visible.expand(-1, len(here), S)
        mass = mass + to_line[:, some] @ (weights @ to_cell)
        seen = seen + to_line[:, some] @ (visible @ to_cell)
        received, looked = received + weights.sum(1), looked + visible.sum(1)
    mass = mass / to_line.sum(1, keepdim=True)  # (H, high, wide)
    picture = (1 + 254 * mass.clamp(0, 1).sqrt()).where(seen > 0, 0)
    shown = [torch.arange(SIDE) * n // SIDE for n in (high, wide)]  # a short text is stretched
    thumbs = picture[:, shown[0]][:, :, shown[1]].round().to(torch.uint8).cpu().numpy()
    share = received / looked.clamp(min=1)
    # A key that few see may get much by chance: a sink is looked for among those that many see.
    share = share.where(looked * 2 >= looked.amax(-1, keepdim=True), 0)
    best = [{"key": int(key), "share": float(value)} for value, key in zip(*share.max(-1), strict=True)]
    return Thumbnail(thumbs, best, len(rows))


def _evenly(edges: list[int], most: int) -> tuple[Tensor, Tensor]:
    """At most `most` queries between each edge and the next, and between which edges they stand."""
    rows, line = [], []
    for y, (first, last) in enumerate(pairwise(edges)):
        count = min(most, last - first)
        rows += [first + (2 * n + 1) * (last - first) // (2 * count) for n in range(count)]
        line += [y] * count
    return torch.tensor(rows, dtype=torch.long), torch.tensor(line, dtype=torch.long)
