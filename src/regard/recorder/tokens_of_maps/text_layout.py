"""What the arguments of a model say of its tokens: which are padding, and where packed documents begin.

A mask is (B, T), True for tokens. Documents are shown by their edges, or where positions begin again.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_not_padding(mask: Tensor | None, position: int, batch: int, length: int) -> None:
    """Raise a ValueError if a position of a text of this length is padding."""
    if mask is None or mask.shape[1] != length or not -length <= position < length:
        return
    if 0 <= batch < len(mask) and not mask[batch, position]:
        tokens = mask[batch].nonzero().flatten()
        raise ValueError(
            f"position: expected one of the tokens of text {batch}, from {int(tokens[0])} to "
            f"{int(tokens[-1])}, got {position}, which is padding"
        )


def token_positions(mask: Tensor | None, batch: int, length: int) -> Tensor | slice:
    """Return the positions of a text of this length that are not padding."""
    if mask is None or mask.shape[1] != length:
        return slice(None)
    return mask[batch].nonzero().flatten().cpu()


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
