"""`Strip`: one layer that grows while a model generates.

A call whose keys continue those of the call before (a cache) belongs to the same map: its queries and its new
keys are put at the end, and the two masks become one rule. Caches that forget, caches that are reordered
(beam search) and caches that are written in place are seen through by looking at the keys themselves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.rules import Mask
from regard.maps import AttentionMap
from regard.recorder.certificate import Evidence, joined, sampled_rows
from regard.recorder.seen import Layer

PROBES = 16  # keys of the first call that are kept to compare later calls with


class Step(NamedTuple):
    """How a call continues a strip."""

    kind: Literal["after", "again", "beside"]
    """New keys after the old; the same keys again, as an encoder's; or other keys beside them."""
    match: Tensor | None = None
    """Which old sequences (B, B) each sequence may continue, where a beam search has reordered them."""

    @property
    def order(self) -> Tensor | None:
        """The old sequence that each continues; sequences with one past are as good as each other."""
        return None if self.match is None else self.match.int().argmax(1)


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
        if self.layer.shape[:2] != (B, H) or map.k.shape[1] != self.probes.shape[1]:
            return None
        # As many queries as keys is a pass of its own, if of the same text; a decoder's steps are fewer.
        held = S - T  # old keys that this call still has, the last ones
        # As many queries as keys on the same keys: the same text once more, not a continuation of it.
        more = held > 0 or self.layer.stack == "cross"
        if more and S == self.S and (match := self._same(map.k, 0)) is not None:
            return Step("again", None if bool(match.diagonal().all()) else match)
        if 0 < held <= self.S and (match := self._same(map.k[:, :, :held], self.S - held)) is not None:
            return Step("after", None if bool(match.diagonal().all()) else match)
        return None

    def with_past(self, step: Step, past: Tensor) -> Step:
        """A step on keys that never change, for sequences that may continue those that `past` (B, B) says.

        An encoder's keys are the same for all beams of a text, and do not show that beams changed places.
        """
        alike = _alike(self.probes, self.probes) & past.to(self.probes.device)
        return step._replace(match=alike) if bool(alike.any(1).all()) else step

    def _same(self, k: Tensor, first: int) -> Tensor | None:
        """Which old sequences hold these keys, old number `first` and on, (B, B); None if one is unknown."""
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
            return torch.eye(len(k), dtype=torch.bool, device=k.device)
        match = _alike(new, old)
        return match if bool(match.any(1).all()) else None

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
            q, k, lse = (x[self.order] for x in (start.q, start.k, start.lse))
            start = AttentionMap(q, k, lse, start.mask, start.scale, start.softcap, start.sinks)
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


def _alike(new: Tensor, old: Tensor) -> Tensor:
    """Which sequences of two batches are the same, (B new, B old)."""
    return torch.stack([(old == one).flatten(1).all(1) for one in new])
