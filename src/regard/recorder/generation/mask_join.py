"""One rule for rows that were computed in several calls: `causal & padding(…)` for a whole generation.

A rule is guessed from the old one, which mostly holds for the new rows, too, and compared with what the calls
had; where they differ, each call keeps its own (`PiecewiseMask`).
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
        old = reordered(old, order)
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


def parts_of(mask: Mask) -> list[Mask]:
    """The rules that & joins in a mask, without `full`."""
    if isinstance(mask, And):
        return [*parts_of(mask.left), *parts_of(mask.right)]
    return [] if mask is full else [mask]


def all_of(parts: list[Mask]) -> Mask:
    return functools.reduce(operator.and_, parts) if parts else full


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
    if kind == "beside":
        if parts_of(new) or not (old is full or isinstance(old, Documents)):
            return None
        ids = (
            old.ids
            if isinstance(old, Documents)
            else torch.zeros(1, before.S, dtype=torch.long, device=device)
        )
        return Documents(pad(ids, (0, added.S), value=int(ids.max()) + 1))
    if kind == "again":
        return old if all(isinstance(part, Padding) for part in parts_of(old)) else None
    fresh = parts_of(new)
    out: list[Mask] = []
    for part in parts_of(old):
        if isinstance(part, Causal | Window | Chunks | Prefix):
            out.append(part)
        elif isinstance(part, Relative):
            others = [p for p in fresh if isinstance(p, Relative)]
            if len(others) != 1:
                return None
            out.append(_wider(part, others[0]))
        elif isinstance(part, Padding | Documents):
            grown = _longer(part, [p for p in fresh if type(p) is type(part)], added)
            if grown is None:
                return None
            out.append(grown)
        else:
            return None
    if not any(isinstance(part, Causal) for part in out):
        if before.T > 1:
            return None
        out.insert(0, causal)  # one query that sees all keys is the start of a causal map
    if not any(isinstance(part, Padding) for part in out):
        marks = [p for p in fresh if isinstance(p, Padding)]
        if marks:
            real = marks[0].real
            hidden = (~real[:, : before.S]).any(0).nonzero().flatten()
            if len(hidden) and bool(old.tile(range(before.T), hidden, shape, device=device).any()):
                return None  # earlier rows do look there
            out.append(Padding(pad(real, (before.S + added.T - real.shape[1], 0), value=True)))
    return all_of(out)


def _wider(old: Relative, new: Relative) -> Relative:
    """Numbers for every distance that one of the two knows; where both do, the old ones."""
    before, after = new.zero - old.zero, (len(new.table.T) - new.zero) - (len(old.table.T) - old.zero)
    left = new.table[:, : max(before, 0)]
    right = new.table[:, len(new.table.T) - max(after, 0) :]
    return Relative(torch.cat([left, old.table, right], 1), old.zero + max(before, 0))


def _longer(part: Padding | Documents, fresh: list[Mask], added: CallSizes) -> Mask | None:
    """Marks of keys with those of the new keys after them."""
    if isinstance(part, Padding):
        if part.real.ndim == 1:
            return None
        tail = fresh[0].real[:, -added.T :] if fresh else part.real.new_ones(1, added.T)  # type: ignore[attr-defined]
        table = part.real
    else:
        tail = fresh[0].ids[:, -added.T :] if fresh else part.ids[:, -1:].expand(-1, added.T)  # type: ignore[attr-defined]
        table = part.ids
    B = max(len(table), len(tail))
    return type(part)(torch.cat([table.expand(B, -1), tail.to(table.device).expand(B, -1)], 1))


def reordered(mask: Mask, order: Tensor) -> Mask:
    """A rule for a batch in another order."""
    if isinstance(mask, And):
        return And(reordered(mask.left, order), reordered(mask.right, order))
    if isinstance(mask, Padding):
        return mask if len(mask.real) == 1 else Padding(mask.real[order.to(mask.real.device)])
    if isinstance(mask, Documents):
        return mask if len(mask.ids) == 1 else Documents(mask.ids[order.to(mask.ids.device)])
    if isinstance(mask, TensorMask):
        return mask if len(mask.tensor) == 1 else TensorMask(mask.tensor[order.to(mask.tensor.device)])
    if isinstance(mask, PiecewiseMask):
        return PiecewiseMask(
            tuple(p._replace(mask=reordered(p.mask, order)) for p in mask.pieces), mask.whole
        )
    return mask
