"""Bins of positions along one side of an overview, and the runs into which they are cut to fit a tile.

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
    places: Tensor  # (runs, width) positions; a padded entry repeats another position
    padded: Tensor  # (runs, width) booleans

    @property
    def width(self) -> int:
        """The length of a run."""
        return self.places.shape[1]

    def unpad(self, x: Tensor) -> Tensor:
        """Flatten x (runs, width) to one entry for each position, in order."""
        return x[~self.padded.to(x.device)]


def make_bins(n: int, count: int, max_width: int) -> Bins:
    """Cut n positions into `count` bins, with edges at floor(i·n/count), in runs of at most `max_width`."""
    edges = [i * n // count for i in range(count + 1)]
    size = -(-n // count)
    per_bin = -(-size // max_width)
    width = -(-size // per_bin)
    first, last = torch.tensor(edges[:-1]).view(-1, 1), torch.tensor(edges[1:]).view(-1, 1)
    index = first + torch.arange(per_bin * width)  # (count, per_bin · width)
    padded = index >= last
    return Bins(edges, per_bin, index.where(~padded, first).view(-1, width), padded.view(-1, width))


class TileSide(NamedTuple):
    """The runs along one side of a tile, and the first position in them."""

    runs: slice
    first: int


def tile_sides(bins: Bins, max_positions: int) -> Iterator[TileSide]:
    """Group the runs into sides of tiles, of at most `max_positions` each, or of one run that is longer."""
    total = len(bins.places)
    step = max(1, max_positions // bins.width)
    for start in range(0, total, step):
        yield TileSide(slice(start, min(start + step, total)), int(bins.places[start, 0]))
