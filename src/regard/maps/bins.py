"""Bins of positions along one side of an overview, and the sides of tiles into which their positions are cut.

Bins are of any lengths, with gaps between them or without. A tile side may begin and end within a bin, so
that no place is wasted and the parts of a bin are joined.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.runs import join_runs
from regard.attention.masks.grid import Blocks

CHUNK = 16  # numbers that are added one after another; in longer sums they would lose digits


class TileSide(NamedTuple):
    """Some neighbouring places along one side of a tile."""

    places: slice
    chunks: slice  # that the places are in
    bins: slice  # likewise
    first: int  # the first and the last position
    last: int


class Bins(NamedTuple):
    """Positions in bins. The places are all positions in a bin, in order; chunks are a few of them."""

    sizes: Tensor  # (bins,) positions in a bin
    places: Tensor  # (places,) positions
    chunk_of_place: Tensor  # (places,)
    bin_of_place: Tensor  # (places,)
    bin_of_chunk: Tensor  # (chunks,)
    sides: list[TileSide]

    @property
    def largest_side(self) -> int:
        """The places along the longest side of a tile."""
        lengths: list[int] = [side.places.stop - side.places.start for side in self.sides]
        return max(lengths)

    def join(self, x: Tensor, side: TileSide, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
        """Reduce x (places of a tile side, …) to the bins of that side, (bins, …)."""
        if reduce == "sum":
            x = _join(x, self.chunk_of_place[side.places], side.chunks, reduce)
            return _join(x, self.bin_of_chunk[side.chunks], side.bins, reduce)
        return _join(x, self.bin_of_place[side.places], side.bins, reduce)

    def by_position(self, x: Tensor, n: int) -> Tensor:
        """The entries of x (places,) in the order of n positions; 0 for a position in no bin."""
        return x.new_zeros(n).index_copy_(0, self.places, x)


def make_bins(bounds: Tensor, max_side: int, device: torch.device) -> Bins:
    """The bins between `bounds` (2, bins) of starts and stops, in tile sides of at most `max_side` places."""
    starts, stops = bounds
    sizes, chunks = stops - starts, -((starts - stops) // CHUNK)
    bin_of_place = torch.arange(len(sizes)).repeat_interleave(sizes)
    number = (
        torch.arange(len(bin_of_place)) - (sizes.cumsum(0) - sizes)[bin_of_place]
    )  # of a place in its bin
    places = starts[bin_of_place] + number
    chunk_of_place = (chunks.cumsum(0) - chunks)[bin_of_place] + number // CHUNK
    edges = [*range(0, len(places), max_side), len(places)]
    ends = torch.tensor([(a, b - 1) for a, b in pairwise(edges)], dtype=torch.long).view(-1, 2)
    sides = [
        TileSide(slice(a, b), slice(first_chunk, last_chunk + 1), slice(first_bin, last_bin + 1), first, last)
        for (a, b), (first_chunk, last_chunk), (first_bin, last_bin), (first, last) in zip(
            pairwise(edges), *(x[ends].tolist() for x in (chunk_of_place, bin_of_place, places)), strict=True
        )
    ]
    bin_of_chunk = torch.arange(len(sizes)).repeat_interleave(chunks)
    return Bins(
        sizes.to(device),
        places.to(device),
        chunk_of_place.to(device),
        bin_of_place.to(device),
        bin_of_chunk.to(device),
        sides,
    )


def _join(x: Tensor, owner: Tensor, owners: slice, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
    """Reduce x (places, …) to the `owners`, all of which own some of its places."""
    count = owners.stop - owners.start
    return x if count == len(x) else join_runs(x, owner - owners.start, count, reduce)


def whole_bins(n: int, max_side: int, device: torch.device) -> Bins:
    """All of n positions in one bin, in tile sides of at most `max_side`."""
    return make_bins(torch.tensor([[0], [n]]), max_side, device)


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
