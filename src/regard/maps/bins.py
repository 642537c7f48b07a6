"""Positions cut into bins, and bins into runs that fit a tile: the layout of an overview, along one side.

Bins differ in size by one at most. Padding each to the same size makes pooling a reduction over one axis of
a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Bins(NamedTuple):
    """Positions cut into bins, and each bin into equal runs short enough for a tile, padded at their ends."""

    edges: list[int]
    per_bin: int  # runs in a bin
    places: Tensor  # (runs, width) positions; a padded one repeats a real one
    padded: Tensor  # (runs, width)

    @property
    def width(self) -> int:
        """Of a run."""
        return self.places.shape[1]

    def real(self, x: Tensor) -> Tensor:
        """What stands for every position in x (runs, width), in their order."""
        return x[~self.padded.to(x.device)]


def bins(n: int, count: int, widest: int) -> Bins:
    """Edges at floor(i·n/count); runs of at most `widest`."""
    edges = [i * n // count for i in range(count + 1)]
    size = -(-n // count)
    per_bin = -(-size // widest)
    width = -(-size // per_bin)
    first, last = torch.tensor(edges[:-1]).view(-1, 1), torch.tensor(edges[1:]).view(-1, 1)
    index = first + torch.arange(per_bin * width)  # (count, per_bin · width)
    padded = index >= last
    return Bins(edges, per_bin, index.where(~padded, first).view(-1, width), padded.view(-1, width))


class Cut(NamedTuple):
    """Some runs that make the side of a tile, and the first position in them."""

    runs: slice
    first: int


def cuts(over: Bins, most: int) -> Iterator[Cut]:
    """The runs in pieces of at most `most` positions."""
    total = len(over.places)
    step = max(1, most // over.width)
    for start in range(0, total, step):
        yield Cut(slice(start, min(start + step, total)), int(over.places[start, 0]))
