"""Joins the masks of several calls into one mask: `causal & padding(…)` for a whole generation.

The mask of the earlier calls usually describes the new rows too. That is assumed first and checked on a
sample of entries; if it does not hold, each call keeps its own mask in a `PiecewiseMask`.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import And, Mask, full
from regard.attention.masks.named import (
    Causal,
    Chunks,
    Documents,
    Padding,
    Prefix,
    Relative,
    TensorMask,
    Window,
    causal,
)
from regard.recorder.certificate import sampled_rows
from regard.recorder.generation.piecewise_mask import CallSizes, PiecewiseMask, Segment, segments_of


def join_masks(
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
    """Return one mask for the rows so far and the rows that a call adds.

    - `old`: the mask of the rows so far, which are of the sizes `before`.
    - `new`: the mask of the call, which has the sizes `added`.
    - `kind`: how the call continues the rows, as in `StripStep`.
    - `order`: for each batch entry, the old sequence that it continues; None if the batch was not reordered.
    - `B`, `H`: the batch size and the number of heads.
    """
    if order is not None:
        old = reorder_batch(old, order)
    S = {"after": before.S + added.T, "again": before.S, "beside": before.S + added.S}[kind]
    whole = CallSizes(before.T + added.T, S)
    piecewise = PiecewiseMask(
        (*segments_of(old, before), Segment(new, added, before.T, whole.S - added.S)),
        whole,
    )
    extended = _extended(old, before, new, added, kind, (B, H, *before), device)
    if extended is None or extended.shape_error(B, H, *whole) is not None:
        return piecewise
    rows, keys = (x.to(device) for x in (before.T + sampled_rows(added.T, 16), sampled_rows(S, 4096)))
    return extended if _agree(extended, piecewise, rows, keys, (B, H, *whole)) else piecewise


def _agree(mask: Mask, exact: Mask, rows: Tensor, keys: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether two masks allow the same entries of a tile, and add the same biases to them."""
    device = rows.device
    allowed = mask.tile(rows, keys, shape, device=device)
    if not bool((allowed == exact.tile(rows, keys, shape, device=device)).all()):
        return False
    if not mask.biased and not exact.biased:
        return True
    bias, expected = (x.bias(rows, keys, shape, device=device) for x in (mask, exact))
    return bias is not None and expected is not None and bool((~allowed | (bias == expected)).all())


def conjuncts(mask: Mask) -> list[Mask]:
    """Return the masks that & joins in a mask, without `full`."""
    if isinstance(mask, And):
        return [*conjuncts(mask.left), *conjuncts(mask.right)]
    return [] if mask is full else [mask]


def _extended(
    old: Mask,
    before: CallSizes,
    new: Mask,
    added: CallSizes,
    kind: str,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> Mask | None:
    """Return the old mask extended to the new rows, or None if it cannot be expected to hold for them.

    `shape` is (B, H, T, S) of the rows so far; the other arguments are those of `join_masks`.
    """
    if kind == "beside":
        return _with_another_document(old, before, new, added, device)
    if kind == "again":
        return old if all(isinstance(part, Padding) for part in conjuncts(old)) else None
    new_parts = conjuncts(new)
    parts: list[Mask] = []
    for part in conjuncts(old):
        if isinstance(part, Causal | Window | Chunks | Prefix):
            parts.append(part)
        elif isinstance(part, Relative):
            tables = [x for x in new_parts if isinstance(x, Relative)]
            if len(tables) != 1:
                return None
            parts.append(_wider_table(part, tables[0]))
        elif isinstance(part, Padding | Documents):
            longer = _longer_table(part, [x for x in new_parts if type(x) is type(part)], added)
            if longer is None:
                return None
            parts.append(longer)
        else:
            return None
    if not any(isinstance(part, Causal) for part in parts):
        if before.T > 1:
            return None
        parts.insert(0, causal)  # one query that sees all keys is the start of a causal map
    if not any(isinstance(part, Padding) for part in parts):
        paddings = [x for x in new_parts if isinstance(x, Padding)]
        if paddings:
            is_token = paddings[0].real
            hidden = (~is_token[:, : before.S]).any(0).nonzero().flatten()
            if len(hidden) and bool(old.tile(range(before.T), hidden, shape, device=device).any()):
                return None  # earlier rows see keys that the new mask hides
            parts.append(Padding(pad(is_token, (before.S + added.T - is_token.shape[1], 0), value=True)))
    return functools.reduce(operator.and_, parts) if parts else full


def _with_another_document(
    old: Mask, before: CallSizes, new: Mask, added: CallSizes, device: torch.device
) -> Mask | None:
    """Return a mask in which the call's tokens are one more document, or None if the masks say more."""
    if conjuncts(new) or not (old is full or isinstance(old, Documents)):
        return None
    if isinstance(old, Documents):
        ids = old.ids
    else:
        ids = torch.zeros(1, before.S, dtype=torch.long, device=device)
    return Documents(pad(ids, (0, added.S), value=int(ids.max()) + 1))


def _wider_table(old: Relative, new: Relative) -> Relative:
    """Join two tables of biases by distance; where both have a distance, the old bias counts."""
    before, after = new.zero - old.zero, (len(new.table.T) - new.zero) - (len(old.table.T) - old.zero)
    left = new.table[:, : max(before, 0)]
    right = new.table[:, len(new.table.T) - max(after, 0) :]
    return Relative(torch.cat([left, old.table, right], 1), old.zero + max(before, 0))


def _longer_table(part: Padding | Documents, new_parts: list[Mask], added: CallSizes) -> Mask | None:
    """Return a mask over keys with the entries of the new keys appended, or None if it holds lengths only."""
    if isinstance(part, Padding):
        if part.real.ndim == 1:
            return None
        tail = new_parts[0].real[:, -added.T :] if new_parts else part.real.new_ones(1, added.T)  # type: ignore[attr-defined]
        table = part.real
    else:
        tail = new_parts[0].ids[:, -added.T :] if new_parts else part.ids[:, -1:].expand(-1, added.T)  # type: ignore[attr-defined]
        table = part.ids
    B = max(len(table), len(tail))
    return type(part)(torch.cat([table.expand(B, -1), tail.to(table.device).expand(B, -1)], 1))


def reorder_batch(mask: Mask, order: Tensor) -> Mask:
    """Return a mask with its batch entries in another order."""
    if isinstance(mask, And):
        return And(reorder_batch(mask.left, order), reorder_batch(mask.right, order))
    if isinstance(mask, Padding):
        return mask if len(mask.real) == 1 else Padding(mask.real[order.to(mask.real.device)])
    if isinstance(mask, Documents):
        return mask if len(mask.ids) == 1 else Documents(mask.ids[order.to(mask.ids.device)])
    if isinstance(mask, TensorMask):
        return mask if len(mask.tensor) == 1 else TensorMask(mask.tensor[order.to(mask.tensor.device)])
    if isinstance(mask, PiecewiseMask):
        segments = tuple(x._replace(mask=reorder_batch(x.mask, order)) for x in mask.segments)
        return PiecewiseMask(segments, mask.whole)
    return mask
