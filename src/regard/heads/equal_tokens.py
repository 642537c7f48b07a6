"""The weights between equal tokens: on earlier copies of a query's token, and on what came after them.

Only pairs of equal tokens matter, so positions are sorted by token and cut into blocks that hold all pairs:
at most T · n weights are computed for blocks of n, instead of T². This file knows tokens and maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap

BLOCK = 48  # positions whose pairs are looked at together
MOST = 1 << 22  # weights that are computed at a time


class Pairs(NamedTuple):
    """Mass of every query, (B, H, T)."""

    copies: Tensor
    """On earlier copies of its own token."""
    after: Tensor
    """On what came after earlier copies, before the query itself."""


class TokenBlock(NamedTuple):
    """Some queries, and keys among which each finds all copies of its token up to its own place."""

    queries: Tensor
    keys: Tensor


def pairs(map: AttentionMap, ids: Tensor, blocks: Sequence[Sequence[TokenBlock]], first: int) -> Pairs:
    """The mass between equal tokens of a map (B, H, T, S) over ids (B, S); its first query stands at `first`.

    `blocks` are those of each text, from `blocks_of`.
    """
    B, H, T, S = map.matrix
    copies, after = (map.lse.new_zeros(B, H, T) for _ in range(2))
    for b in range(B):
        text, one = ids[b], map if B == 1 else map[b : b + 1]
        for queries, keys in blocks[b]:
            places = torch.cat([keys, (keys + 1).clamp(max=S - 1)])
            tile = one.tile(queries - first, places)[0]  # (H, queries, 2 · keys)
            at = queries.view(-1, 1)
            same = text[at] == text[keys]
            mass = tile.view(H, len(queries), 2, -1).where(
                torch.stack([same & (keys < at), same & (keys + 1 < at)], 1), 0.0
            )
            copies[b, :, queries - first], after[b, :, queries - first] = mass.sum(-1).unbind(-1)
    return Pairs(copies, after)


def blocks_of(text: Tensor, real: Tensor | None, queries: range, heads: int) -> list[TokenBlock]:
    """The blocks of a text (S,); `real` says which tokens are text, since padding is nobody's copy."""
    order = text.argsort(stable=True)  # by token, and in order of place for each
    if real is not None:
        order = order[real[order]]
    counts = torch.unique_consecutive(text[order], return_counts=True)[1].tolist()
    found: list[TokenBlock] = []
    held: list[Tensor] = []
    room = BLOCK

    def close() -> None:
        nonlocal held, room
        if held:
            joined = torch.cat(held)
            found.append(TokenBlock(joined, joined))
        held, room = [], BLOCK

    for group, count in zip(torch.split(order, counts), counts, strict=True):
        if count > BLOCK:
            step = max(16, min(2 * BLOCK, MOST // (heads * count)))
            found += [TokenBlock(group[i : i + step], group[: i + step]) for i in range(0, count, step)]
        elif count > 1:
            if count > room:
                close()
            held.append(group)
            room -= count
    close()
    chosen = ((block.queries >= queries.start) & (block.queries < queries.stop) for block in found)
    kept = (TokenBlock(block.queries[yes], block.keys) for block, yes in zip(found, chosen, strict=True))
    return [block for block in kept if len(block.queries)]
