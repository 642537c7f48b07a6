"""Bins of positions along one side of an overview, cut into runs that fill the sides of tiles.

The runs along one side of a tile have one width, which makes pooling a reduction over one axis of the tile.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.runs import cut_into_runs, join_runs
from regard.attention.masks.grid import Blocks


class TileSide(NamedTuple):
    """The runs along one side of a tile."""

    runs: slice
    places: slice  # among the places of all runs
    width: int  # of a run
    first: int  # the least and the greatest position in the runs
    last: int


class Bins(NamedTuple):
    """Positions in bins, and the bins cut into runs that are padded at their ends to the width of their side.

    Some positions may be in no bin.
    """

    sizes: Tensor  # (bins,) positions in a bin
    places: Tensor  # (places,) positions; a padded place repeats another position
    padded: Tensor  # (places,) booleans
    of_run: Tensor  # (runs,) the bin of a run
    sides: list[TileSide]

    @property
    def largest_side(self) -> int:
        """The places along the longest side of a tile."""
        lengths: list[int] = [side.places.stop - side.places.start for side in self.sides]
        return max(lengths)

    def join(self, x: Tensor, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
        """Join the runs of x (runs, …) to bins (bins, …)."""
        if len(self.of_run) == len(self.sizes) and torch.equal(
            self.of_run, torch.arange(len(self.of_run), device=self.of_run.device)
        ):
            return x
        return join_runs(x, self.of_run, len(self.sizes), reduce)

    def by_position(self, x: Tensor, n: int) -> Tensor:
        """The entries of x (places,) in the order of n positions; 0 for a position in no bin."""
        return x.new_zeros(n).index_copy_(0, self.places[~self.padded], x[~self.padded])


def make_bins(bounds: Tensor, max_positions: int, device: torch.device) -> Bins:
    """Cut the bins between `bounds` (2, bins) into runs, for tile sides of at most `max_positions` places."""
    starts, stops = bounds
    places, padded, of_run, sides = [], [], [], []
    run = place = 0
    for group in cut_into_runs(starts, stops, max_positions):
        is_padding = group.places < 0
        places.append(group.places.where(~is_padding, group.places[:, :1]).flatten())
        padded.append(is_padding.flatten())
        of_run.append(group.spans)
        runs, width = group.places.shape
        step = max(1, max_positions // width)
        for i in range(0, runs, step):
            j = min(i + step, runs)
            first, last = int(group.places[i, 0]), int(group.places[j - 1].max())
            at = slice(place + i * width, place + j * width)
            sides.append(TileSide(slice(run + i, run + j), at, width, first, last))
        run, place = run + runs, place + runs * width
    parts = [stops - starts, torch.cat(places), torch.cat(padded), torch.cat(of_run)]
    sizes, all_places, all_padded, bins = (x.to(device) for x in parts)
    return Bins(sizes, all_places, all_padded, bins, sides)


def cut_evenly(n: int, side: int, device: torch.device) -> Bins:
    """All of n positions in order, in bins of `side` positions that fill one tile side each."""
    edges = [*range(0, n, side), n]
    sides = [
        TileSide(slice(i, i + 1), slice(a, b), b - a, a, b - 1) for i, (a, b) in enumerate(pairwise(edges))
    ]
    places = torch.arange(n, device=device)
    bins = torch.arange(len(sides), device=device)
    sizes = torch.tensor(edges, device=device).diff()
    return Bins(sizes, places, torch.zeros_like(places, dtype=torch.bool), bins, sides)


def find_runs(positions: Tensor) -> Tensor:
    """The starts and stops (2, runs) of the neighbours among increasing positions, at least one."""
    breaks = (positions.diff() > 1).nonzero().flatten()
    starts = torch.cat([positions[:1], positions[breaks + 1]])
    return torch.stack([starts, torch.cat([positions[breaks], positions[-1:]]) + 1])


def block_table(q_bins: Bins, k_bins: Bins, T: int, S: int) -> Blocks:
    """The blocks of a map of T queries and S keys that lie between the tile sides of its bins."""
    q, k = (
        torch.tensor([(side.first, side.last) for side in bins.sides]).view(-1, 2).unbind(-1)
        for bins in (q_bins, k_bins)
    )
    q_first, q_last = (x[:, None] + S - T for x in q)
    return Blocks(q_first, q_last, k[0][None], k[1][None], T, S)
