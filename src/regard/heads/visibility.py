"""What a mask lets see: how many keys each query, how many queries each key, and looking at all of it alike.

That is what scores are compared with, and what says where a score has an occasion. It is the same for all
heads that have the same mask, so it is worked out for one head where a mask does not tell heads apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.base import Mask, grid
from regard.attention.masks.views import MaskOnly
from regard.maps import AttentionMap, attention_map
from regard.maps.sweep import first_position

SIDE = 512  # of the tiles that a mask is asked for


@dataclass(frozen=True)
class Visibility:
    """What the heads of a map may see; h is 1 where all heads see the same."""

    alike: AttentionMap
    """(B, h, T, S): looks at everything that it may see alike."""
    keys: Tensor
    """(B, h, T): how many keys each query sees."""
    queries: Tensor
    """(B, h, S): how many queries see each key; those that are padding do not count."""
    ahead: bool
    """Whether some query sees a later position than its own."""


def sight(map: AttentionMap, real: Tensor | None = None) -> Visibility:
    """What may be seen in a map (B, H, T, S); `real`, boolean (B, T), says which queries are no padding."""
    B, H, T, S = map.matrix
    sees: Mask = MaskOnly(map.mask)
    shape, device, first = map.matrix, map.device, first_position(map)
    if sees.allowed(grid(range(min(T, 1)), range(min(S, 1)), shape, device)).shape[1] == 1:
        sees, H, shape = sees.select(slice(0, B), slice(0, 1)), 1, (B, 1, T, S)
    counted = torch.ones(1, 1, T, device=device) if real is None else real[:, None].to(device, torch.float32)
    keys, queries = torch.zeros(B, H, T, device=device), torch.zeros(B, H, S, device=device)
    ahead = False
    edges = [*range(0, T, SIDE), T], [*range(0, S, SIDE), S]
    for rows, columns in visits_between(sees, *edges) if T and S else ():
        positions = torch.arange(rows.start, rows.stop, device=device).view(-1, 1) + first
        for column in columns:
            width = column.keys.stop - column.keys.start
            if column.whole:
                keys[..., rows] += width
                queries[..., column.keys] += counted[..., rows].sum(-1, keepdim=True)
                ahead = ahead or column.keys.stop - 1 > rows.start + first
                continue
            allowed = sees.allowed(grid(rows, column.keys, shape, device))
            allowed = allowed.expand(B, H, rows.stop - rows.start, width)
            keys[..., rows] += allowed.sum(-1)
            queries[..., column.keys] += torch.einsum(
                "bhqk,bhq->bhk", allowed.float(), counted[..., rows].expand(B, H, -1)
            )
            later = torch.arange(column.keys.start, column.keys.stop, device=device) > positions
            ahead = ahead or bool((allowed & later).any())
    return Visibility(_alike(map, sees, H, keys), keys, queries, ahead)


def uniform(map: AttentionMap) -> AttentionMap:
    """The map of heads that may see the same and look at all of it alike: what scores are compared with."""
    B, H, T, _ = map.matrix
    found = sight(map)
    return _alike(map, MaskOnly(map.mask), H, found.keys.expand(B, H, T))


def _alike(map: AttentionMap, sees: Mask, H: int, keys: Tensor) -> AttentionMap:
    B, _, T, S = map.matrix
    nothing = map.lse.new_zeros(1, 1, 1, 1)
    q, k = nothing.expand(B, H, T, 1), nothing.expand(B, H, S, 1)
    return attention_map(q, k, mask=sees, lse=keys.to(map.lse.dtype).log())
