"""Which keys a mask lets queries see: counts for each query and each key, and the map of uniform attention.

Uniform attention is the baseline of the head scores, and the counts decide for which queries a score is
defined. Both are the same for all heads with the same mask, so they are computed for one head where a mask
does not distinguish heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.base import Mask, grid
from regard.attention.masks.grid import Band
from regard.attention.masks.views import MaskOnly
from regard.maps import AttentionMap, LinearAttentionMap, attention_map

TILE = 512  # rows and keys for which a mask is evaluated at a time


@dataclass(frozen=True)
class Visibility:
    """What the heads of a map may see; h is 1 where all heads have the same mask."""

    uniform: AttentionMap
    """(B, h, T, S): uniform attention to the visible keys."""
    keys: Tensor
    """(B, h, T): the number of keys that each query sees."""
    queries: Tensor
    """(B, h, S): the number of queries that see each key, padding not counted."""
    later: bool
    """Whether some query sees a later position than its own."""


def find_visibility(m: AttentionMap | LinearAttentionMap, is_token: Tensor | None = None) -> Visibility:
    """Count the visible keys and queries of a map (B, H, T, S).

    `is_token`, boolean (B, T), is False for queries that are padding.
    """
    B, H, T, S = m.matrix
    mask: Mask = MaskOnly(m.mask)
    shape, device, first = m.matrix, m.device, m.first_position
    # One head stands for all if the mask is the same for all.
    # min: a map may have no rows or no keys to ask about.
    if mask.allowed(grid(range(min(T, 1)), range(min(S, 1)), shape, device)).shape[1] == 1:
        mask, H, shape = mask.select(slice(0, B), slice(0, 1)), 1, (B, 1, T, S)
    counted = torch.ones(1, 1, T, device=device)
    if is_token is not None:
        counted = is_token[:, None].to(device, torch.float32)
    band = mask.band(T, S)
    if band is not None and T and S:
        keys, queries = _count_in_band(band, counted.expand(B, H, T), S)
        # The first query has the most keys after it.
        later = min(S - T + (S if band.ahead is None else band.ahead), S - 1) > first
        return Visibility(_uniform(m, mask, H, keys), keys, queries, later)
    keys, queries = torch.zeros(B, H, T, device=device), torch.zeros(B, H, S, device=device)
    later = False
    edges = [*range(0, T, TILE), T], [*range(0, S, TILE), S]
    for rows, columns in visits_between(mask, *edges) if T and S else ():
        positions = torch.arange(rows.start, rows.stop, device=device).view(-1, 1) + first
        for column in columns:
            width = column.keys.stop - column.keys.start
            if column.whole:  # every query of the tile sees every key
                keys[..., rows] += width
                queries[..., column.keys] += counted[..., rows].sum(-1, keepdim=True)
                later = later or column.keys.stop - 1 > rows.start + first
                continue
            allowed = mask.allowed(grid(rows, column.keys, shape, device))
            allowed = allowed.expand(B, H, rows.stop - rows.start, width)
            keys[..., rows] += allowed.sum(-1)
            queries[..., column.keys] += torch.einsum(
                "bhqk,bhq->bhk", allowed.float(), counted[..., rows].expand(B, H, -1)
            )
            after = torch.arange(column.keys.start, column.keys.stop, device=device) > positions
            later = later or bool((allowed & after).any())
    return Visibility(_uniform(m, mask, H, keys), keys, queries, later)


def _count_in_band(band: Band, counted: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """The visible keys (B, H, T) of each query, and the queries (B, H, S) that see each key.

    `counted` (B, H, T) is 1 for the queries that count.
    """
    T, device = counted.shape[-1], counted.device
    behind, ahead = (S if limit is None else limit for limit in band)
    positions = torch.arange(S - T, S, device=device)
    first, stop = (positions - behind).clamp(0, S), (positions + ahead + 1).clamp(0, S)
    keys = (stop - first).clamp(min=0).to(counted).expand(counted.shape)
    # The number of queries before each, and of those in the band of each key.
    before = torch.nn.functional.pad(counted.cumsum(-1), (1, 0))  # (B, H, T + 1)
    own = torch.arange(S, device=device) - (S - T)  # the query at the position of each key
    first, stop = (own - ahead).clamp(0, T), (own + behind + 1).clamp(0, T)
    return keys, before[..., torch.maximum(stop, first)] - before[..., first]


def uniform(m: AttentionMap | LinearAttentionMap) -> AttentionMap:
    """The map of uniform attention to the keys that each query of m sees: the baseline of the head scores."""
    B, H, T, _ = m.matrix
    return _uniform(m, MaskOnly(m.mask), H, find_visibility(m).keys.expand(B, H, T))


def _uniform(m: AttentionMap | LinearAttentionMap, mask: Mask, H: int, keys: Tensor) -> AttentionMap:
    """Uniform attention of H heads under a mask; `keys` (B, H, T) are the numbers of visible keys."""
    B, _, T, S = m.matrix
    lse = keys.to(m.dtype).log()
    if m.device.type == "cuda" and isinstance(m, AttentionMap):
        # Width, dtype and layout of m: other ones would be other kernels to compile.
        zeros = m.k.new_zeros(B, 1, S, m.k.shape[-1])
        return attention_map(zeros[:1, :, :1].expand(B, H, T, -1), zeros, mask=mask, lse=lse)
    # expand: one number in memory, whatever the size of the map.
    zero = torch.zeros(1, 1, 1, 1, dtype=m.dtype, device=m.device)
    return attention_map(zero.expand(B, H, T, 1), zero.expand(B, H, S, 1), mask=mask, lse=lse)
