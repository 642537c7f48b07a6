"""Where the documents of packed texts begin: by their edges, or where their positions begin again."""

from __future__ import annotations

import torch
from torch import Tensor


def documents_of_edges(edges: Tensor, T: int) -> Tensor:
    """Return the document of each of T tokens, (T,), for edges (documents + 1,) that run from 0 to T."""
    return torch.bucketize(torch.arange(T, device=edges.device), edges[1:-1].long(), right=True)


def documents_of_positions(positions: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the document of each token for its positions (B, T): one begins where they do not go on.

    Positions of padding are often all 0 or 1, and a text on the left begins after it: between a token that
    is `real` (B, T) and one that is not, no document begins.
    """
    begins = torch.zeros_like(positions, dtype=torch.bool)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    if real is not None:
        begins[:, 1:] &= real[:, 1:] & real[:, :-1]
    return begins.long().cumsum(1)
