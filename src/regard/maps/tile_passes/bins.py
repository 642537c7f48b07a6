"""Bins of positions along one side of an overview, and the sides of tiles into which their positions are cut.

Bins are of any lengths, with gaps between them or without. A tile side may begin and end within a bin, so
that no place is wasted and the parts of a bin are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.runs import join_runs
from regard.attention.masks.grid import Blocks
from regard.maps.spans import number_members

PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "amax": torch.maximum,
    "amin": torch.minimum,
}
NARROW = 8  # neighbouring numbers that PyTorch reduces in twice the time of one place of every bin at a time
PADDING_SHARE = 8  # bins are padded where that adds at most one place to so many
CHUNK = 16  # numbers that are added one after another; in longer sums they would lose digits


class TileSide(NamedTuple):
    """Some neighbouring places along one side of a tile."""

    places: slice
    chunks: slice  # that the places are in
    bins: slice  # likewise
    first: int  # the first and the last position
    last: int
    width: int | None  # the places of every bin of the side, if all have as many
    padding: Tensor | None  # which places, counted from the side's first, are padding

    @property
    def size(self) -> int:
        """The number of places."""
        size: int = self.places.stop - self.places.start
        return size

    @property
    def is_in_line(self) -> bool:
        """Whether its places are neighbouring positions, each of them once."""
        return self.padding is None and self.size == self.last - self.first + 1


def join_sides(sides: Sequence[TileSide]) -> TileSide:
    """Join neighbouring sides to one."""
    if len(sides) == 1:
        return sides[0]
    first, last = sides[0], sides[-1]
    places, chunks, bins = (slice(a.start, b.stop) for a, b in zip(first[:3], last[:3], strict=True))
    size, count = places.stop - places.start, bins.stop - bins.start
    # Every part has whole bins of one width, or a part of the only bin.
    whole = {side.width for side in sides} == {first.width} and size == count * (first.width or 0)
    padding = [side.padding + side.places.start - places.start for side in sides if side.padding is not None]
    return TileSide(
        places,
        chunks,
        bins,
        first.first,
        last.last,
        size if count == 1 else first.width if whole else None,
        torch.cat(padding) if padding else None,
    )


class Bins(NamedTuple):
    """Positions in bins. The places are all positions in a bin, in order; chunks are a few of them.

    Where bins are padded, each has as many places: a shorter one ends in copies of its last position.
    """

    sizes: Tensor  # (bins,) positions in a bin
    places: Tensor  # (places,) positions
    chunk_of_place: Tensor  # (places,)
    bin_of_place: Tensor  # (places,)
    bin_of_chunk: Tensor  # (chunks,)
    padding: Tensor | None  # (places,) whether a place is padding
    sides: list[TileSide]

    def join(self, x: Tensor, side: TileSide, reduce: Literal["sum", "amax", "amin"], dim: int = 0) -> Tensor:
        """Reduce one dimension of x, the places of a tile side, to the bins of it. Padding has to be 0."""
        if side.width == 1:
            return x
        dim %= x.ndim
        if side.width is not None:
            x = x.view(*x.shape[:dim], -1, side.width, *x.shape[dim + 1 :])
            in_line = dim + 2 == x.ndim and side.width <= NARROW
            joined: Tensor = fold(PAIRWISE[reduce], x.unbind(-1)) if in_line else getattr(x, reduce)(dim + 1)
            return joined
        x = x.movedim(dim, 0)
        if reduce == "sum":
            x = _join(x, self.chunk_of_place[side.places], side.chunks, reduce)
            x = _join(x, self.bin_of_chunk[side.chunks], side.bins, reduce)
        else:
            x = _join(x, self.bin_of_place[side.places], side.bins, reduce)
        return x.movedim(0, dim)

    def select(self, x: Tensor, dim: int = 0) -> Tensor:
        """The entries of x at every place; `dim` has the positions. A view where these are neighbours."""
        first, last = self.sides[0].first, self.sides[-1].last
        if self.padding is not None or len(self.places) != last - first + 1:
            return x.index_select(dim, self.places)
        return x.narrow(dim, first, last - first + 1)

    def by_position(self, x: Tensor, n: int) -> Tensor:
        """The entries of x (…, places) in the order of n positions; 0 for a position in no bin."""
        places = self.places
        if self.padding is not None:
            places, x = places[~self.padding], x[..., ~self.padding]
        return x.new_zeros(*x.shape[:-1], n).index_copy_(-1, places, x)


def make_bins(bounds: Tensor, max_side: int, device: torch.device, *, pad: bool = False) -> Bins:
    """The bins between `bounds` (2, bins) of starts and stops, in tile sides of at most `max_side` places.

    `pad` makes bins of almost equal sizes equal, if that adds few places: they are reduced much faster.
    """
    starts, stops = bounds
    sizes = stops - starts
    # `or 1`: a bin may be empty, and max_side // 0 would raise.
    largest = max(sizes.tolist(), default=1) or 1
    fits, added = largest <= max_side, len(sizes) * largest - int(sizes.sum())
    pad = pad and fits and 0 < PADDING_SHARE * added <= int(sizes.sum())
    lengths = torch.full_like(sizes, largest) if pad else sizes  # in places
    chunks = -(-lengths // CHUNK)
    bin_of_place, number = number_members(lengths)
    last_number = sizes[bin_of_place] - 1
    places, padding = starts[bin_of_place] + torch.minimum(number, last_number), number > last_number
    chunk_of_place = (chunks.cumsum(0) - chunks)[bin_of_place] + number // CHUNK
    # Equal bins are not cut in two, unless they are longer than a side.
    equal = fits and (pad or not added)
    edges = [*range(0, len(places), max_side // largest * largest if equal else max_side), len(places)]
    ends = torch.tensor([(a, b - 1) for a, b in pairwise(edges)], dtype=torch.long, device="cpu").view(-1, 2)
    sides = [
        TileSide(
            slice(a, b),
            slice(first_chunk, last_chunk + 1),
            slice(first_bin, last_bin + 1),
            first,
            last,
            largest if equal else b - a if first_bin == last_bin else None,
            padding[a:b].nonzero().flatten().to(device) if pad else None,
        )
        for (a, b), (first_chunk, last_chunk), (first_bin, last_bin), (first, last) in zip(
            pairwise(edges), *(x[ends].tolist() for x in (chunk_of_place, bin_of_place, places)), strict=True
        )
    ]
    bin_of_chunk = torch.arange(len(sizes), device="cpu").repeat_interleave(chunks)
    return Bins(
        sizes.to(device),
        places.to(device),
        chunk_of_place.to(device),
        bin_of_place.to(device),
        bin_of_chunk.to(device),
        padding.to(device) if pad else None,
        sides,
    )


def _join(x: Tensor, owner: Tensor, owners: slice, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
    """Reduce x (places, …) to the `owners`, all of which own some of its places."""
    count = owners.stop - owners.start
    return x if count == len(x) else join_runs(x, owner - owners.start, count, reduce)


def whole_bins(n: int, max_side: int, device: torch.device) -> Bins:
    """All of n positions in one bin, in tile sides of at most `max_side`."""
    return make_bins(torch.tensor([[0], [n]], device="cpu"), max_side, device)


def find_runs(positions: Tensor) -> Tensor:
    """The starts and stops (2, runs) of the neighbours among increasing positions, at least one."""
    breaks = (positions.diff() > 1).nonzero().flatten()
    starts = torch.cat([positions[:1], positions[breaks + 1]])
    return torch.stack([starts, torch.cat([positions[breaks], positions[-1:]]) + 1])


def block_table(q_bins: Bins, k_bins: Bins, T: int, S: int) -> Blocks:
    """The blocks of a map of T queries and S keys that lie between the tile sides of its bins."""
    q, k = (
        torch.tensor([(side.first, side.last) for side in bins.sides], device="cpu").view(-1, 2).unbind(-1)
        for bins in (q_bins, k_bins)
    )
    q_first, q_last = (x[:, None] + S - T for x in q)
    return Blocks(q_first, q_last, k[0][None], k[1][None], T, S)
