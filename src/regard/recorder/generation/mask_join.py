"""One rule for rows that were computed in several calls: `causal & padding(…)` for a whole generation.

A rule is guessed from the old one, which mostly holds for the new rows, too, and compared with what the calls
had; where they differ, each call keeps its own (`PiecewiseMask`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named import Documents, Padding, causal
from regard.recorder.certificate import sampled_rows
from regard.recorder.generation.piecewise_mask import CallSizes, PiecewiseMask, Segment, pieces_of


def joined_mask(
    old: Mask,
    before: CallSizes,
    new: Mask,
    added: CallSizes,
    kind: str,
    order: Tensor | None,
    B: int,
    H: int,
    device: torch.device,
) -> Mask:
    """One rule for a map of which `old` knows the rows so far and `new` those that a call has added."""
    if order is not None:
        old = old.select(order, slice(None))
    S = {"after": before.S + added.T, "again": before.S, "beside": before.S + added.S}[kind]
    whole = CallSizes(before.T + added.T, S)
    pieces = PiecewiseMask(
        (*pieces_of(old, before), Segment(new, added, before.T, whole.S - added.S)),
        whole,
    )
    guess = _extended(old, before, new, added, kind, (B, H, *before), device)
    if guess is None:
        return pieces
    rows, keys = (x.to(device) for x in (before.T + sampled_rows(added.T, 16), sampled_rows(S, 4096)))
    shape = (B, H, *whole)
    return (
        guess
        if guess.shape_error(B, H, *whole) is None and _agree(guess, pieces, rows, keys, shape)
        else pieces
    )


def _agree(one: Mask, other: Mask, rows: Tensor, keys: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether two rules say the same of a tile, and add the same where one may look."""
    device = rows.device
    allowed = one.tile(rows, keys, shape, device=device)
    if not bool((allowed == other.tile(rows, keys, shape, device=device)).all()):
        return False
    if not one.biased and not other.biased:
        return True
    added, too = (rule.bias(rows, keys, shape, device=device) for rule in (one, other))
    return added is not None and too is not None and bool((~allowed | (added == too)).all())


def _extended(
    old: Mask,
    before: CallSizes,
    new: Mask,
    added: CallSizes,
    kind: str,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> Mask | None:
    """The old rule, taken to hold for the new rows too; None where that is not to be expected."""
    fresh = new.conjuncts()
    if kind == "beside":
        if fresh:
            return None
        one_document = Documents(torch.zeros(1, before.S, dtype=torch.long, device=device))
        return (one_document if old is full else old).append_document(added.S)
    if kind == "again":
        return old if all(conjunct.is_padding for conjunct in old.conjuncts()) else None
    masks: list[Mask] = []
    for conjunct in old.conjuncts():
        extended = conjunct.extend(fresh, *added)
        if extended is None:
            return None
        masks.append(extended)
    if not any(mask.is_causal for mask in masks):
        if before.T > 1:
            return None
        masks.insert(0, causal)  # one query that sees all keys is the start of a causal map
    is_token = next((mask.key_padding(added.S) for mask in fresh if mask.is_padding), None)  # (B, S)
    if is_token is not None and not any(mask.is_padding for mask in masks):
        hidden = (~is_token[:, : before.S]).any(0).nonzero().flatten()
        if len(hidden) and bool(old.tile(range(before.T), hidden, shape, device=device).any()):
            return None  # earlier rows do see these keys
        masks.append(Padding(pad(is_token, (before.S + added.T - is_token.shape[1], 0), value=True)))
    return conjunction(masks)
