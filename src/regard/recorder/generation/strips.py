"""`Strip`: the map of one layer, which grows while a model generates.

Whether a call continues the previous ones is decided by comparing the keys. If they agree, the call's queries
and its new keys are appended and the masks are joined into one. This also works for sliding-window caches,
for beam search, which reorders the batch, and for static caches, which are overwritten in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import AttentionMap
from regard.recorder.certificate import Evidence, join_evidence, sampled_rows
from regard.recorder.generation.piecewise_mask import CallSizes
from regard.recorder.layer import Layer
from regard.recorder.map_preparation import ScoreSettings

PROBES = 64  # the number of keys that are kept for comparison with later calls if not all are in memory


class StripStep(NamedTuple):
    """How a call continues a strip."""

    kind: Literal["after", "again", "beside"]
    """New keys after the old ones, the same keys again (as an encoder's), or other keys beside them."""
    old: tuple[Tensor, ...] = ()
    """The keys (B, G, n, D) that were compared, as the strip has them, in parts."""
    new: tuple[Tensor, ...] | None = None
    """The same keys as the call has them, if they differ because a beam search has reordered the batch."""
    kept: int | None = None
    """The number of tokens that are left before the call, if it takes later ones back; None for all of them.

    Speculative decoding does so with guesses that were not accepted."""

    def match(self) -> Tensor | None:
        """Return which old sequences each new sequence may continue, boolean (B, B)."""
        if not self.old:
            return None
        parts = [
            torch.stack([(old == sequence).flatten(1).all(1) for sequence in new])
            for old, new in zip(self.old, self.old if self.new is None else self.new, strict=True)
        ]
        return torch.stack(parts).all(0)


class Addition(NamedTuple):
    """What a call adds to a strip."""

    step: StripStep
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, new keys, D)
    lse: Tensor  # (B, H, T)
    v: Tensor | None  # (B, G, new keys, E)
    mask: Mask
    sizes: CallSizes  # of the call
    evidence: Evidence


class Strip:
    """A layer so far: the map of its first call, and what later calls have added.

    `layer` is the layer as it is stored, whose map may be in a file by now; `m` is its map.
    """

    def __init__(self, layer: Layer, m: AttentionMap) -> None:
        self.layer = layer
        self.mask, self.evidence, self.scores = m.mask, layer.evidence, ScoreSettings.of(m)
        self.T, self.S = m.matrix[2:]
        self.first_keys = self.S
        # The keys (B, G, n, D) of the first call: those in memory, or copies of a sample if none are kept.
        is_kept = layer.in_memory and layer.data().map is m
        self.probed = sampled_rows(self.S, self.S if is_kept else PROBES).to(m.device)
        self.probes = m.k if is_kept else m.k[:, :, self.probed].clone()
        self.order: Tensor | None = None  # how the first call's batch has been reordered since
        self.q: list[Tensor] = []
        self.k: list[Tensor] = []
        self.lse: list[Tensor] = []
        self.v: list[Tensor] = []

    @property
    def grown(self) -> bool:
        """Whether anything was added to the first call, or taken back."""
        return bool(self.q) or self.layer.shape[2] > self.T

    def step(self, m: AttentionMap) -> StripStep | None:
        """Return how a call continues the strip, or None if it does not.

        `m` is the call's map, with the same heads and dtype as the strip.
        """
        B, H, T, S = m.matrix
        if self.layer.shape[:2] != (B, H) or m.k.shape[1] != self.probes.shape[1]:
            return None
        if self.scores != ScoreSettings.of(m):
            return None
        cached = S - T  # old keys that this call still has, the last ones
        # As many queries as keys on the same keys are the same text once more, not a continuation of it.
        continues = cached > 0 or self.layer.stack == "cross"
        if continues and S == self.S and (step := self._compare("again", m.k, 0)) is not None:
            return step
        if not 0 < cached <= self.S:
            return None
        step = self._compare("after", m.k[:, :, :cached], self.S - cached)
        return self._rewind(m.k[:, :, :cached]) if step is None else step

    def _rewind(self, k: Tensor) -> StripStep | None:
        """Return the step of a call whose old keys k are the first ones of the strip, but not all of them."""
        kept = k.shape[2]
        if kept >= self.S or not self.can_rewind:
            return None
        own = torch.cat([self.probes, *(part.to(self.probes.device) for part in self.k)], 2)[:, :, :kept]
        return StripStep("after", (own,), kept=kept) if torch.equal(own, k) else None

    @property
    def can_rewind(self) -> bool:
        """Whether its last rows can be taken back: its keys are in memory, and its mask goes by position."""
        is_whole = self.T == self.S and self.probes.shape[2] == self.first_keys
        return is_whole and all(mask.positional for mask in self.mask.conjuncts())

    def rewind(self, kept: int) -> None:
        """Take back all tokens but the first ones."""
        for parts in (self.q, self.k, self.lse, self.v):
            joined = torch.cat(parts, 2)[:, :, : max(0, kept - self.first_keys)] if parts else None
            parts[:] = [] if joined is None else [joined]
        if kept < self.first_keys:
            self.probes, self.first_keys = self.probes[:, :, :kept], kept
            self.probed = self.probed[:kept]
        self.T = self.S = kept

    def _compare(self, kind: Literal["after", "again"], k: Tensor, first: int) -> StripStep | None:
        """Return the step if keys k equal the strip's from number `first` on, the batch in any order."""
        start, stop = torch.searchsorted(self.probed, self.probed.new_tensor([first, first + k.shape[2]]))
        at = self.probed[start:stop] - first
        new = k[:, :, : len(at)] if len(self.probed) == self.first_keys else k[:, :, at]
        pairs = [(self.probes[:, :, start:stop], new)]
        if self.k:
            later = torch.cat(self.k, 2)[:, :, max(first - self.first_keys, 0) :]
            pairs.append((later, k[:, :, max(self.first_keys - first, 0) :]))
        if any(old.shape != new.shape for old, new in pairs) or not any(old.shape[2] for old, _ in pairs):
            return None
        olds, news = zip(*pairs, strict=True)
        if all(map(torch.equal, olds, news)):
            return StripStep(kind, olds)
        step = StripStep(kind, olds, news)
        match = step.match()
        return step if match is not None and bool(match.any(1).all()) else None

    def addition(self, step: StripStep, m: AttentionMap, v: Tensor | None, evidence: Evidence) -> Addition:
        """Return what a call with map `m` and values `v` adds; of their old keys nothing is kept."""
        T, S = m.matrix[2:]
        new = {"after": T, "again": 0, "beside": S}[step.kind]
        k, values = m.k[:, :, S - new :].clone(), None if v is None else v[:, :, S - new :].clone()
        return Addition(step, m.q, k, m.lse, values, m.mask, CallSizes(T, S), evidence)

    def extend(self, addition: Addition, order: Tensor | None, mask: Mask) -> None:
        """Append a call.

        `order` says for each batch entry which old sequence it continues; None means its own. `mask` is the
        mask of all rows.
        """
        if order is not None:
            order = order.to(self.probes.device)
            self.order = order if self.order is None else self.order[order]
            self.probes = self.probes[order]
            for parts in (self.q, self.k, self.lse, self.v):
                parts[:] = [part[order] for part in parts]
        self.q.append(addition.q)
        self.k.append(addition.k)
        self.lse.append(addition.lse)
        if addition.v is not None:
            self.v.append(addition.v)
        self.T, self.S, self.mask = self.T + addition.q.shape[2], self.S + addition.k.shape[2], mask
        self.evidence = join_evidence(self.evidence, addition.evidence, mask)

    def finished(self) -> Layer:
        """Return the whole layer."""
        layer = self.layer
        first, values = layer.map, layer.values
        if self.order is not None:
            first = first._with(q=first.q[self.order], k=first.k[self.order], lse=first.lse[self.order])
            values = None if values is None else values[self.order]
        if self.first_keys < first.matrix[3]:  # some of its tokens were taken back
            n = self.first_keys
            first = first._with(q=first.q[:, :, :n], k=first.k[:, :, :n], lse=first.lse[:, :, :n])
            values = None if values is None else values[:, :, :n]
        q, k, lse = (
            torch.cat([x, *(part.to(first.device) for part in parts)], 2)
            for x, parts in ((first.q, self.q), (first.k, self.k), (first.lse, self.lse))
        )
        if values is not None:
            values = torch.cat([values, *(part.to(values.device) for part in self.v)], 2)
        m = first._with(q=q, k=k, lse=lse, mask=self.mask)
        evidence = replace(self.evidence, rows=min(self.evidence.rows, self.T), total_rows=self.T)
        return Layer(
            layer.number,
            layer.name,
            layer.stack,
            m,
            evidence,
            layer.heads,
            values,
            placement=layer.placement,
        )
