"""Maps of the same text as one map of all their heads: starting an operation takes longer than short rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.heads.measures.visible_keys import Visibility
from regard.maps import AttentionMap


def join_maps(maps: Sequence[AttentionMap]) -> AttentionMap:
    """The maps (B, H, T, S) of several layers as one of layers · H heads."""
    first = maps[0]
    if len(maps) == 1:
        return first
    fields = {name: torch.cat([getattr(m, name) for m in maps], 1) for name in ("q", "k", "lse")}
    sinks = None if first.sinks is None else torch.cat([m.sinks for m in maps if m.sinks is not None])
    return first._with(**fields, sinks=sinks)


def with_uniform_head(m: AttentionMap, visibility: Visibility) -> AttentionMap | None:
    """The map with heads of uniform attention after its own, or None where the mask tells heads apart."""
    B, H, T, S = m.matrix
    if m.mask.biased or visibility.keys.shape[1] != 1 or 0 in (H, T, S):
        return None
    # As many as share a key head, for all groups of a map have one size.
    copies = H // m.k.shape[1]
    uniform = m._with(
        q=m.q.new_zeros(1, 1, 1, 1).expand(B, copies, T, m.q.shape[-1]),
        k=m.k.new_zeros(1, 1, 1, 1).expand(B, 1, S, m.k.shape[-1]),
        lse=visibility.uniform.lse.to(m.lse.dtype).expand(B, copies, T),
        sinks=None if m.sinks is None else torch.full_like(m.sinks[:copies], -torch.inf),
    )
    return join_maps([m, uniform])
