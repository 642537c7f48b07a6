"""`LayerSummary`: the statistics of a layer whose queries and keys are not stored; its size grows with T."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap

CELLS = 256  # the sides of the overview


class LayerSummary(NamedTuple):
    """The statistics of one layer, exact, each over all of its heads."""

    mass: Tensor  # (B, H, rows, cols), as map.pool(rows, cols, "mass")
    max: Tensor  # (B, H, rows, cols)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)
    previous: Tensor  # (B, H, …) the weights on the token before each query's own
    itself: Tensor  # (B, H, …) the weights on its own

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self)


def summarise(map: AttentionMap) -> LayerSummary:
    """What a map (B, H, T, S) says in all: an overview of up to 256×256 cells, and a number a row or key."""
    _, _, T, S = map.matrix
    with torch.no_grad():
        found = map.summary(min(T, CELLS), min(S, CELLS))
        aligned = S - T  # queries stand at the end of the keys
        previous, itself = map.diagonal(aligned - 1), map.diagonal(aligned)
    return LayerSummary(*found, previous, itself)


def summary_size(B: int, H: int, T: int, S: int, itemsize: int = 4) -> int:
    """The bytes of a summary of a map (B, H, T, S)."""
    overview = 2 * min(T, CELLS) * min(S, CELLS)
    diagonals = min(T, S - 1) + min(T, S)
    return B * H * (overview + 2 * T + S + diagonals) * itemsize
