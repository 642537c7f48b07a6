"""Joins the tokens of several ranks, each of which reads some rows of one text.

Under context parallelism a rank's model is given its own rows. Which rows these are is known from its layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.recorder.placement import Runs

if TYPE_CHECKING:
    from regard.recorder.rank_group import RankGroup
    from regard.recorder.receiver import PassTokens
    from regard.recorder.result import Capture


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
