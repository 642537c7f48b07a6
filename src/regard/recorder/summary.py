"""`LayerSummary`: the statistics of a layer whose queries and keys are not stored. Its size grows with T."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap

CELLS = 256  # the largest number of rows and of columns of the overview


class LayerSummary(NamedTuple):
    """The exact statistics of every head of a layer."""

    mass: Tensor  # (B, H, rows, cols), as map.pool(rows, cols, "mass")
    max: Tensor  # (B, H, rows, cols)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)
    previous: Tensor  # (B, H, …) the weight of each query on the token before its own
    itself: Tensor  # (B, H, …) the weight of each query on its own token

    @property
    def nbytes(self) -> int:
        """The number of bytes of all its tensors."""
        return sum(x.nbytes for x in self)


def summarise(m: AttentionMap | LinearAttentionMap) -> LayerSummary:
    """Compute an overview of at most 256×256 cells and the row and key statistics of a map (B, H, T, S)."""
    _, _, T, S = m.matrix
    with torch.no_grad():
        found = m.summary(min(T, CELLS), min(S, CELLS))
        offset = S - T  # the queries are the last T of the S positions
        previous, itself = m.diagonal(offset - 1), m.diagonal(offset)
    of_rows = found.entropy, found.distance, found.received
    return LayerSummary(found.mass, found.max, *of_rows, previous, itself)


def summarise_together(maps: Sequence[AttentionMap | LinearAttentionMap]) -> list[LayerSummary]:
    """Summarise the maps of several layers: those of one shape and mask as one batch, which is faster.

    On a GPU, and for short texts on a CPU, starting an operation takes longer than computing it.
    """
    alike: dict[object, list[int]] = {}
    for i, m in enumerate(maps):
        alike.setdefault(batch_kind(m) or i, []).append(i)
    summaries: dict[int, LayerSummary] = {}
    for numbers in alike.values():
        if len(numbers) == 1:
            summaries[numbers[0]] = summarise(maps[numbers[0]])
            continue
        joined = summarise(join_maps([m for i in numbers if isinstance(m := maps[i], AttentionMap)]))
        for i, parts in zip(numbers, zip(*(x.chunk(len(numbers)) for x in joined), strict=True), strict=True):
            part = LayerSummary._make(parts)
            # Nearly all of it, in memory of its own: a layer that is kept alone is not to keep the others'.
            summaries[i] = part._replace(mass=part.mass.clone(), max=part.max.clone())
    return [summaries[i] for i in range(len(maps))]


def summary_size(B: int, H: int, T: int, S: int, itemsize: int = 4) -> int:
    """Return the number of bytes of the summary of a map (B, H, T, S) with `itemsize` bytes a number."""
    overview = 2 * min(T, CELLS) * min(S, CELLS)
    diagonals = min(T, S - 1) + min(T, S)
    return B * H * (overview + 2 * T + S + diagonals) * itemsize


def batch_kind(m: object) -> tuple[object, ...] | None:
    """Return what maps must have in common to be joined; None for a map that cannot be.

    Then something in it besides q, k and lse belongs to one text or head.
    """
    if not isinstance(m, AttentionMap) or m.sinks is not None or m.kept is not None or 0 in m.matrix:
        return None
    if not all(mask.positional for mask in m.mask.conjuncts()):
        return None
    return m.mask, m.q.shape, m.k.shape, m.q.dtype, m.k.dtype, m.lse.dtype, m.device, m.scale, m.softcap


def join_maps(maps: Sequence[AttentionMap]) -> AttentionMap:
    """Return maps of one kind as one whose batch has all of their texts."""
    if len(maps) == 1:
        return maps[0]
    return maps[0]._with(**{name: torch.cat([getattr(m, name) for m in maps]) for name in ("q", "k", "lse")})
