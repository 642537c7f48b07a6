"""`Strip`: one layer that grows while a model generates.

A call whose keys continue those of the call before (a cache) belongs to the same map: its queries and its new
keys are put at the end, and the two masks become one rule. Caches that forget, caches that are reordered
(beam search) and caches that are written in place are seen through by looking at the keys themselves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import AttentionMap
from regard.recorder.certificate import Evidence, joined, sampled_rows
from regard.recorder.generation.piecewise_mask import CallSizes
from regard.recorder.result import Layer

PROBES = 64  # keys of the first call that are kept to compare later calls with


class StripStep(NamedTuple):
    """How a call continues a strip."""

    kind: Literal["after", "again", "beside"]
    """New keys after the old; the same keys again, as an encoder's; or other keys beside them."""
    old: Tensor | None = None
    """The keys (B, G, n, D) that were compared, as the strip has them."""
    new: Tensor | None = None
    """The same as the call has them, where they differ: a beam search has reordered the batch."""

    def match(self) -> Tensor | None:
        """Which old sequences each sequence may continue, (B, B)."""
        if self.old is None:
            return None
        new = self.old if self.new is None else self.new
        return torch.stack([(self.old == one).flatten(1).all(1) for one in new])


class Addition(NamedTuple):
    """What a call adds to a strip."""

    step: StripStep
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, new keys, D)
    lse: Tensor  # (B, H, T)
    v: Tensor | None
    mask: Mask
    sizes: CallSizes  # of the call
    evidence: Evidence


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

    def step(self, map: AttentionMap) -> StripStep | None:
        """How a call, narrowed and cast as the strip is, continues it; None if it does not."""
        B, H, T, S = map.matrix
        if self.layer.shape[:2] != (B, H) or map.k.shape[1] != self.probes.shape[1]:
            return None
        held = S - T  # old keys that this call still has, the last ones
        # As many queries as keys on the same keys: the same text once more, not a continuation of it.
        more = held > 0 or self.layer.stack == "cross"
        if more and S == self.S and (step := self._compared("again", map.k, 0)) is not None:
            return step
        return self._compared("after", map.k[:, :, :held], self.S - held) if 0 < held <= self.S else None

    def _compared(self, kind: Literal["after", "again"], k: Tensor, first: int) -> StripStep | None:
        """The step, if these keys are those of the strip, number `first` and on, the batch in any order."""
        here = (self.probed >= first) & (self.probed < first + k.shape[2])
        at = self.probed[here] - first
        old, new = self.probes[:, :, here], k[:, :, at]
        if self.k:
            known = torch.cat(self.k, 2)
            old = torch.cat([old, known[:, :, max(first - self.first_keys, 0) :]], 2)
            new = torch.cat([new, k[:, :, max(self.first_keys - first, 0) :]], 2)
        if old.shape != new.shape or not old.shape[2]:
            return None
        if torch.equal(old, new):
            return StripStep(kind, old)
        step = StripStep(kind, old, new)
        match = step.match()
        return step if match is not None and bool(match.any(1).all()) else None

    def addition(self, step: StripStep, map: AttentionMap, v: Tensor | None, evidence: Evidence) -> Addition:
        """What a call adds, in memory of its own."""
        T, S = map.matrix[2:]
        new = {"after": T, "again": 0, "beside": S}[step.kind]
        k, values = map.k[:, :, S - new :].clone(), None if v is None else v[:, :, S - new :].clone()
        return Addition(step, map.q.clone(), k, map.lse.clone(), values, map.mask, CallSizes(T, S), evidence)

    def extend(self, added: Addition, order: Tensor | None, mask: Mask) -> None:
        """Put a call at the end, each of its sequences after the one that it continues. `mask` is for all."""
        if order is not None:
            order = order.to(self.probes.device)
            self.order = order if self.order is None else self.order[order]
            self.probes = self.probes[order]
            for parts in (self.q, self.k, self.lse, self.v):
                parts[:] = [part[order] for part in parts]
        self.q.append(added.q)
        self.k.append(added.k)
        self.lse.append(added.lse)
        if added.v is not None:
            self.v.append(added.v)
        self.T, self.S, self.mask = self.T + added.q.shape[2], self.S + added.k.shape[2], mask
        self.evidence = joined(self.evidence, added.evidence, mask)

    def finished(self) -> Layer:
        """The whole layer."""
        old = self.layer
        start, values = old.map, old.values
        if self.order is not None:
            q, k, lse = (x[self.order] for x in (start.q, start.k, start.lse))
            start = start._with(q=q, k=k, lse=lse)
            values = None if values is None else values[self.order]
        device = start.device
        q, k, lse = (
            torch.cat([x, *(part.to(device) for part in parts)], 2)
            for x, parts in ((start.q, self.q), (start.k, self.k), (start.lse, self.lse))
        )
        if values is not None:
            values = torch.cat([values, *(part.to(values.device) for part in self.v)], 2)
        m = start._with(q=q, k=k, lse=lse, mask=self.mask)
        return Layer(old.number, old.name, old.stack, m, self.evidence, old.heads, values)
