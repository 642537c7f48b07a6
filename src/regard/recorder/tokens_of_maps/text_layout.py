"""The tokens of a text: which are padding, where packed documents begin, what passes and ranks add to them.

A mask is (B, T), True for tokens. Documents are shown by their edges, or where positions begin again. Under
context parallelism a rank's model is given its own rows; which these are is known from its layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.recorder.call_receiver import PassTokens
    from regard.recorder.capture_result import Capture
    from regard.recorder.placement import Runs
    from regard.recorder.rank_group import RankGroup


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


def join_token_rows(seen: Capture, ranks: RankGroup) -> None:
    """Replace the tokens of a rank that has some rows by those of all ranks. All ranks call it."""
    rows = next((layer.placement.rows for layer in seen.layers if layer.placement is not None), None)
    tables = {"ids": seen.ids, "attention_mask": seen.attention_mask}
    own = {name: None if table is None else table.int().tolist() for name, table in tables.items()}
    everyone = ranks.exchange_plain({"rows": rows, **own})
    # Under tensor and pipeline parallelism every rank is given all rows.
    if any(of_rank["rows"] is None for of_rank in everyone):
        return
    for name, table in tables.items():
        parts = [of_rank[name] for of_rank in everyone]
        if table is not None and all(part is not None for part in parts):
            runs = [of_rank["rows"] for of_rank in everyone]
            setattr(seen, name, _join(table, [torch.tensor(part, device="cpu") for part in parts], runs))


def _join(own: Tensor, parts: list[Tensor], runs: list[Runs]) -> Tensor:
    """The table (B, T) of all ranks, which have these rows; a rank that has it all already keeps its own."""
    positions = [
        torch.tensor([i for run in of_rank for i in range(*run)], dtype=torch.long, device="cpu")
        for of_rank in runs
    ]
    total = sum(map(len, positions))
    if any(part.shape != (len(own), len(rows)) for part, rows in zip(parts, positions, strict=True)):
        return own
    whole = own.new_empty(len(own), total)
    for part, rows in zip(parts, positions, strict=True):
        whole[:, rows] = part.to(own.dtype)
    return whole


def add_tokens(
    seen: Capture, tokens: PassTokens, continues: bool, order: Tensor | None, kept: int | None
) -> None:
    """Put the tokens of a forward pass after those that it continues, or in their place.

    If only the first ones are `kept`, the others are taken back.
    """
    for name in ("ids", "target_ids"):
        old, new = getattr(seen, name), getattr(tokens, name)
        if new is not None and old is not None and continues and len(old) == len(new):
            new = torch.cat([(old if order is None else old[order])[:, :kept], new], 1)
        if new is not None:
            setattr(seen, name, new)
    mask = tokens.attention_mask
    if mask is not None and seen.ids is not None and mask.shape == seen.ids.shape:
        seen.attention_mask = mask
