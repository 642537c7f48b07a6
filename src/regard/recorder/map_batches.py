"""Maps of several layers as one map of a larger batch: small operations cost more than what they compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.maps import AttentionMap


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
