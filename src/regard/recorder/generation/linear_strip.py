"""`LinearStrip`: the map of one linear layer, which grows while a model generates.

A call continues the previous ones if the state that it begins with is the state that the last one returned.
The queries, keys, decays and write strengths of all calls together are those of one recurrence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import LinearAttentionMap
from regard.recorder.certificate import Evidence, join_evidence
from regard.recorder.generation.piecewise_mask import CallSizes
from regard.recorder.generation.strips import StripStep
from regard.recorder.layer import Layer


class LinearAddition(NamedTuple):
    """What a call adds to a strip."""

    step: StripStep
    map: LinearAttentionMap
    values: Tensor | None  # (B, H, T, E)
    state: Tensor | None  # that it returned
    sizes: CallSizes
    evidence: Evidence


class LinearStrip:
    """A linear layer so far: the map of its first call, and what later calls have added.

    `layer` is the layer as it is stored, `m` its map, and `state` (B, H, D, E) what its first call returned.
    """

    def __init__(self, layer: Layer, m: LinearAttentionMap, state: Tensor | None) -> None:
        self.layer, self.mask, self.evidence = layer, m.mask, layer.evidence
        self.T = self.S = m.matrix[2]
        self.state = None if state is None else state.clone()
        self.order: Tensor | None = None  # how the first call's batch has been reordered since
        self.maps: list[LinearAttentionMap] = []
        self.values: list[Tensor] = []

    @property
    def grown(self) -> bool:
        """Whether anything was added to the first call."""
        return bool(self.maps)

    def step(self, state: Tensor | None) -> StripStep | None:
        """Return how a call that begins with a `state` continues the strip, or None if it does not."""
        if state is None or self.state is None or state.shape != self.state.shape:
            return None
        old = self.state.to(state)  # a cache may store it in another dtype
        if torch.equal(old, state):
            return StripStep("after", (old,))
        step = StripStep("after", (old,), (state,))
        match = step.match()
        return step if match is not None and bool(match.any(1).all()) else None

    def addition(
        self,
        step: StripStep,
        m: LinearAttentionMap,
        values: Tensor | None,
        state: Tensor | None,
        evidence: Evidence,
    ) -> LinearAddition:
        """Return what a call adds, in memory of its own."""
        own = m._with(q=m.q.clone(), k=m.k.clone(), decay=m.decay.clone(), beta=m.beta.clone())
        values, state = (None if x is None else x.clone() for x in (values, state))
        T = m.matrix[2]
        return LinearAddition(step, own, values, state, CallSizes(T, self.T + T), evidence)

    def extend(self, addition: LinearAddition, order: Tensor | None, mask: Mask) -> None:
        """Append a call; `order` says for each batch entry which old sequence it continues, None its own."""
        if order is not None:
            order = order.to(addition.map.device)
            self.order = order if self.order is None else self.order[order]
            self.maps = [_reordered(m, order) for m in self.maps]
            self.values = [v[order] for v in self.values]
        self.maps.append(addition.map)
        if addition.values is not None:
            self.values.append(addition.values)
        self.state, self.T, self.S = addition.state, self.T + addition.sizes.T, self.S + addition.sizes.T
        self.evidence = join_evidence(self.evidence, addition.evidence, mask)

    def finished(self) -> Layer:
        """Return the whole layer."""
        layer, first, values = self.layer, self.layer.map, self.layer.values
        assert isinstance(first, LinearAttentionMap)
        if self.order is not None:
            first = _reordered(first, self.order)
            values = None if values is None else values[self.order]
        parts = [first, *(m.to(first.device) for m in self.maps)]
        joined = {
            name: torch.cat([getattr(m, name) for m in parts], 2) for name in ("q", "k", "decay", "beta")
        }
        if values is not None:
            values = torch.cat([values, *(v.to(values.device) for v in self.values)], 2)
        m = first._with(**joined, rows=None)
        return Layer(layer.number, layer.name, layer.stack, m, self.evidence, layer.heads, values)


def _reordered(m: LinearAttentionMap, order: Tensor) -> LinearAttentionMap:
    """Return the map with the sequences of its batch in another order."""
    return m._with(q=m.q[order], k=m.k[order], decay=m.decay[order], beta=m.beta[order])
