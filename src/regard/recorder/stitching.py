"""`Strip`: one layer that grows while a model generates.

A call whose keys continue those of the call before (a cache) belongs to the same map: its queries and its new
keys are put at the end, and the two masks become one rule. Caches that forget, caches that are reordered
(beam search) and caches that are written in place are seen through by looking at the keys themselves.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks import Causal, Chunks, Dense, Documents, Padding, Prefix, Window, causal
from regard.attention.rules import And, Blocks, Grid, Mask, full, grid
from regard.maps import AttentionMap
from regard.recorder.certificate import Evidence, joined, sampled_rows
from regard.recorder.seen import Layer

PROBES = 16  # keys of the first call that are kept to compare later calls with


class Step(NamedTuple):
    """How a call continues a strip."""

    kind: Literal["after", "again", "beside"]
    """"after": new keys after the old; "again": the same keys (an encoder's); "beside": other keys altogether."""
    order: Tensor | None = None
    """Which old sequence each sequence of the batch continues, where a beam search has reordered them."""


class Strip:
    """A layer as far as it is known: what its first call gave, and what was added since."""

    def __init__(self, layer: Layer, map: AttentionMap) -> None:
        self.layer = layer  # as it is stored: its map may lie in a file by now
        self.mask, self.evidence = map.mask, layer.evidence
        self.T, self.S = map.matrix[2:]
        self.first_keys = self.S
        probed = sampled_rows(self.S, PROBES)
        self.probed = probed.to(map.device)
        self.probes = map.k[:, :, self.probed].clone()  # (B, G, n, D)
        self.order: Tensor | None = None  # how the first call's batch has been reordered since
        self.q: list[Tensor] = []
        self.k: list[Tensor] = []
        self.lse: list[Tensor] = []
        self.v: list[Tensor] = []

    @property
    def grown(self) -> bool:
        return bool(self.q)

    def step(self, map: AttentionMap) -> Step | None:
        """How a call, narrowed and cast as the strip is, continues it; None if it does not."""
        B, H, T, S = map.matrix
        if (B, H) != self.layer.shape[:2] or map.k.shape[1] != self.probes.shape[1]:
            return None
        if S == self.S and (order := self._same(map.k, 0)) is not None:
            return Step("again", None if _in_order(order) else order)
        held = S - T  # old keys that this call still has, the last ones
        if 0 < held <= self.S and (order := self._same(map.k[:, :, :held], self.S - held)) is not None:
            return Step("after", None if _in_order(order) else order)
        return None

    def _same(self, k: Tensor, first: int) -> Tensor | None:
        """Which old sequence holds each of these keys, old number `first` and on; None if one is unknown."""
        here = (self.probed >= first) & (self.probed < first + k.shape[2])
        at = self.probed[here] - first
        old, new = self.probes[:, :, here], k[:, :, at]
        if self.k:
            known = torch.cat(self.k, 2)
            since = max(first - self.first_keys, 0)
            old = torch.cat([old, known[:, :, since:]], 2)
            new = torch.cat([new, k[:, :, max(self.first_keys - first, 0) :]], 2)
        if old.shape != new.shape or not old.shape[2]:
            return None
        if torch.equal(old, new):
            return torch.arange(len(k), device=k.device)
        match = (new[:, None] == old[None]).flatten(2).all(-1)  # (B new, B old)
        return match.int().argmax(1) if bool(match.any(1).all()) else None

    def extend(self, step: Step, map: AttentionMap, v: Tensor | None, evidence: Evidence, mask: Mask) -> None:
        """Put a call at the end. `mask` is the rule for the whole."""
        T, S = map.matrix[2:]
        if step.order is not None:
            self.order = step.order if self.order is None else self.order[step.order]
            self.probes = self.probes[step.order]
            for parts in (self.q, self.k, self.lse, self.v):
                parts[:] = [part[step.order] for part in parts]
        new = {"after": T, "again": 0, "beside": S}[step.kind]
        self.q.append(map.q.clone())
        self.lse.append(map.lse.clone())
        self.k.append(map.k[:, :, S - new :].clone())
        if v is not None:
            self.v.append(v[:, :, S - new :].clone())
        self.T, self.S, self.mask = self.T + T, self.S + new, mask
        self.evidence = joined(self.evidence, evidence, mask)

    def finished(self) -> Layer:
        """The whole layer."""
        old = self.layer
        start, values = old.map, old.values
        if self.order is not None:
            start = AttentionMap(
                *(x[self.order] for x in (start.q, start.k, start.lse)),
                start.mask,
                start.scale,
                start.softcap,
                start.sinks,
            )
            values = None if values is None else values[self.order]
        device = start.device
        q, k, lse = (
            torch.cat([x, *(part.to(device) for part in parts)], 2)
            for x, parts in ((start.q, self.q), (start.k, self.k), (start.lse, self.lse))
        )
        if values is not None:
            values = torch.cat([values, *(part.to(values.device) for part in self.v)], 2)
        map = AttentionMap(q, k, lse, self.mask, start.scale, start.softcap, start.sinks)
        return Layer(old.number, old.name, old.stack, map, self.evidence, old.heads, values)


def _in_order(order: Tensor) -> bool:
    return bool((order == torch.arange(len(order), device=order.device)).all())


class Sizes(NamedTuple):
    """T queries and S keys."""

    T: int
    S: int


def joined_mask(
    old: Mask, before: Sizes, new: Mask, added: Sizes, step: Step, B: int, H: int, device: torch.device
) -> Mask:
    """One rule for a map of which `old` knows the rows so far and `new` those that a call has added."""
    kind = step.kind
    if step.order is not None:
        old = reordered(old, step.order)
    S = {"after": before.S + added.T, "again": before.S, "beside": before.S + added.S}[kind]
    whole = Sizes(before.T + added.T, S)
    pieces = Pieces(
        (*_pieces_of(old, before), Piece(new, added, before.T, whole.S - added.S)),
        whole,
    )
    guess = _extended(old, before, new, added, kind, device)
    if guess is None:
        return pieces
    rows = before.T + sampled_rows(added.T, 16)
    keys = sampled_rows(S, 4096)
    shape = (B, H, *whole)
    same = guess.misfit(B, H, *whole) is None and _equal(
        guess.tile(rows, keys, shape, device=device), pieces.tile(rows, keys, shape, device=device)
    )
    return guess if same else pieces


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool((a == b).all())


def parts_of(mask: Mask) -> list[Mask]:
    """The rules that & joins in a mask, without `full`."""
    if isinstance(mask, And):
        return [*parts_of(mask.left), *parts_of(mask.right)]
    return [] if mask is full else [mask]


def all_of(parts: list[Mask]) -> Mask:
    return functools.reduce(operator.and_, parts) if parts else full


def _extended(
    old: Mask, before: Sizes, new: Mask, added: Sizes, kind: str, device: torch.device
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
            out.append(Padding(pad(real, (before.S + added.T - real.shape[1], 0), value=True)))
    return all_of(out)


def _longer(part: Padding | Documents, fresh: list[Mask], added: Sizes) -> Mask | None:
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
    if isinstance(mask, Dense):
        return mask if len(mask.tensor) == 1 else Dense(mask.tensor[order.to(mask.tensor.device)])
    if isinstance(mask, Pieces):
        return Pieces(tuple(p._replace(mask=reordered(p.mask, order)) for p in mask.pieces), mask.whole)
    return mask


class Piece(NamedTuple):
    """A rule for some rows: `sizes` says of how many, and of how many keys it speaks."""

    mask: Mask
    sizes: Sizes
    first_row: int
    first_key: int


def _pieces_of(mask: Mask, sizes: Sizes) -> tuple[Piece, ...]:
    return mask.pieces if isinstance(mask, Pieces) else (Piece(mask, sizes, 0, 0),)


@dataclass(frozen=True, repr=False, eq=False)
class Pieces(Mask):
    """Rows that were computed in several calls, each with a rule of its own; between them they see no more."""

    pieces: tuple[Piece, ...]
    whole: Sizes

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return any(piece.mask.biased for piece in self.pieces)

    def allowed(self, at: Grid) -> Tensor:
        out = None
        for piece, inside, row, key in self._asked(at):
            near, local = self._local(piece, row, key, at)
            here = inside & near & piece.mask.allowed(local)
            out = here if out is None else out | here
        assert out is not None
        return out

    def added(self, at: Grid) -> Tensor | None:
        out = None
        for piece, inside, row, key in self._asked(at):
            near, local = self._local(piece, row, key, at)
            bias = piece.mask.added(local)
            if bias is not None:
                here = torch.where(inside & near, bias, 0.0)
                out = here if out is None else out + here
        return out

    def _asked(self, at: Grid):  # type: ignore[no-untyped-def]
        rows = at.q - (at.S - at.T)  # (1, 1, rows, 1), counted from the first query
        for piece in self.pieces:
            row, key = rows - piece.first_row, at.k - piece.first_key
            inside = (row >= 0) & (row < piece.sizes.T)
            if bool(inside.any()) or piece is self.pieces[0]:
                yield piece, inside, row, key

    def _local(self, piece: Piece, row: Tensor, key: Tensor, at: Grid) -> tuple[Tensor, Grid]:
        """Which keys the piece knows, and the question in its own numbers."""
        T, S = piece.sizes
        near = (key >= 0) & (key < S)
        local = grid(
            row.flatten().clamp(0, T - 1),
            key.flatten().clamp(0, S - 1),
            (at.b.shape[0], at.h.shape[1], T, S),
            at.k.device,
        )
        return near, local._replace(b=at.b, h=at.h)

    def bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        table = (blocks.q_first == blocks.q_first) & (blocks.k_first == blocks.k_first)
        return table, ~table

    def narrowed(self, batch: slice, heads: slice) -> Mask:
        return Pieces(tuple(p._replace(mask=p.mask.narrowed(batch, heads)) for p in self.pieces), self.whole)

    def misfit(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if (T, S) != self.whole:
            return f"expected {self.whole.T} queries and {self.whole.S} keys, got {T} and {S}"
        return next((why for p in self.pieces if (why := p.mask.misfit(B, H, *p.sizes)) is not None), None)

    def __repr__(self) -> str:
        return " then ".join(dict.fromkeys(str(piece.mask) for piece in self.pieces))
