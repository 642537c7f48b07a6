"""Induction and duplicate scores: attention to what followed earlier copies of a token, and to the copies.

On a GPU a kernel compares the tokens of all pairs while it passes over the map. Elsewhere only pairs of equal
tokens are computed: positions are sorted by token and cut into blocks that hold all pairs, at most T · n
weights for blocks of n, instead of T². This file knows tokens and maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap, kernels

BLOCK = 48  # positions whose pairs are computed together
MAX_WEIGHTS = 1 << 22  # that are computed at a time


class CopyMass(NamedTuple):
    """The mass of every query on copies of its token, (B, H, T)."""

    copies: Tensor
    """On earlier copies of its own token."""
    after: Tensor
    """On the tokens after earlier copies, before the query itself."""


class TokenBlock(NamedTuple):
    """Positions of queries, and of keys that include all copies of each query's token up to its own."""

    queries: Tensor
    keys: Tensor


def copy_mass_by_kernel(m: AttentionMap, ids: Tensor, is_token: Tensor | None) -> CopyMass | None:
    """`copy_mass` in one pass over the map on a GPU; None if the kernels do not support the map.

    `is_token` (B, S), if given, is False for padding, which is no copy of anything.
    """
    if m.device.type != "cuda" or bool(m.precise.large.any()):  # large scores are computed in float64
        return None
    if is_token is not None:
        # A number of its own for each place, which no token has.
        ids = ids.where(is_token, -1 - torch.arange(ids.shape[1], device=ids.device))
    no_token = torch.iinfo(ids.dtype).min
    after = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=no_token)  # the token before each key
    sums = kernels.pair_sums(m, ids, torch.stack([ids, after]))
    return None if sums is None else CopyMass(*sums)


def copy_mass(m: AttentionMap, ids: Tensor, blocks: Sequence[Sequence[TokenBlock]]) -> CopyMass:
    """The mass between equal tokens of a map (B, H, T, S) over tokens ids (B, S).

    `blocks` are those of each text, from `find_blocks`.
    """
    B, H, T, S = m.matrix
    first = m.first_position
    copies, after = (m.lse.new_zeros(B, H, T) for _ in range(2))
    for b in range(B):
        tokens, text = ids[b], m if B == 1 else m[b : b + 1]
        for queries, keys in blocks[b]:
            # One tile holds the weights on the copies and on the tokens after them.
            # clamp: the last token has none after it; the mask below leaves the copy of it out.
            both = torch.cat([keys, (keys + 1).clamp(max=S - 1)])
            tile = text.tile(queries - first, both)[0]  # (H, queries, 2 · keys)
            at = queries.view(-1, 1)
            same = tokens[at] == tokens[keys]
            mass = tile.view(H, len(queries), 2, -1).where(
                torch.stack([same & (keys < at), same & (keys + 1 < at)], 1), 0.0
            )
            copies[b, :, queries - first], after[b, :, queries - first] = mass.sum(-1).unbind(-1)
    return CopyMass(copies, after)


def find_blocks(tokens: Tensor, is_token: Tensor | None, queries: range, heads: int) -> list[TokenBlock]:
    """Cut the positions of a text into blocks of equal tokens.

    `tokens` (S,) is the text; `is_token` (S,), if given, is False for padding, which is no copy of anything.
    `queries` are the positions that have a row in the map, and `heads` the number of its heads.
    """
    # stable, so that equal tokens stay in the order of their positions, which the blocks rely on.
    order = tokens.argsort(stable=True)  # by token, and by position for each
    if is_token is not None:
        order = order[is_token[order]]
    counts = torch.unique_consecutive(tokens[order], return_counts=True)[1].tolist()
    blocks: list[TokenBlock] = []
    pending: list[Tensor] = []  # groups of copies that share the next block
    room = BLOCK

    def close_block() -> None:
        nonlocal pending, room
        if pending:
            joined = torch.cat(pending)
            blocks.append(TokenBlock(joined, joined))
        pending, room = [], BLOCK

    for group, count in zip(torch.split(order, counts), counts, strict=True):
        if count > BLOCK:
            step = max(16, min(2 * BLOCK, MAX_WEIGHTS // (heads * count)))
            blocks += [TokenBlock(group[i : i + step], group[: i + step]) for i in range(0, count, step)]
        elif count > 1:
            if count > room:
                close_block()
            pending.append(group)
            room -= count
    close_block()
    # Leave out positions that have no row.
    has_row = ((block.queries >= queries.start) & (block.queries < queries.stop) for block in blocks)
    kept = (TokenBlock(block.queries[rows], block.keys) for block, rows in zip(blocks, has_row, strict=True))
    return [block for block in kept if len(block.queries)]
