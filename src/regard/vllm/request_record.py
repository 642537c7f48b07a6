"""`RequestRecord`: the attention of one request so far, layer by layer and position by position.

A request arrives in steps: parts of its prompt, then one token at a time. A step continues the one before it,
or begins earlier where vLLM has preempted the request and computes it again, or later where a cached prefix
was found, whose queries do not exist. This file knows positions and tensors; it does not know vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.certificates.certificate import Evidence, join_evidence
from regard.recorder.layer import VALUES, Layer
from regard.vllm.attention_settings import WatchedLayer


class LayerStep(NamedTuple):
    """What one step adds to a layer: its tokens from the position `first` on, in the CPU's memory.

    A cached prefix is a step whose tokens have keys and no queries. Keys that no row sees may be zeros there:
    blocks behind a sliding window are freed.
    """

    first: int
    tensors: dict[str, Tensor]  # q (H, T, D), lse (H, T), k (G, T, D) and perhaps values (G, T, E)
    evidence: Evidence | None  # None without queries

    @property
    def stop(self) -> int:
        """The position after its last token."""
        return self.first + self.tensors["k"].shape[1]

    def before(self, position: int) -> LayerStep:
        """What it adds before a position."""
        T, evidence = position - self.first, self.evidence
        if evidence is not None:
            evidence = replace(evidence, rows=min(evidence.rows, T), total_rows=T)
        return LayerStep(self.first, {name: x[:, :T] for name, x in self.tensors.items()}, evidence)


@dataclass
class LayerRecord:
    """One layer of a request so far."""

    watched: WatchedLayer
    steps: list[LayerStep] = field(default_factory=list)

    def continues(self, first: int) -> bool:
        """Whether tokens from position `first` on follow those so far."""
        return (self.steps[-1].stop if self.steps else 0) == first

    def rewind(self, first: int, keys: Tensor) -> bool:
        """Forget the tokens from position `first` on; return whether those before it still hold.

        `keys` (G, n, D) are the last keys before `first`, as they are cached now. Where they are not those
        that are known, nothing is left.
        """
        steps = [x if x.stop <= first else x.before(first) for x in self.steps if x.first < first]
        self.steps = []
        if steps and steps[-1].stop == first:
            known = torch.cat([x.tensors["k"] for x in steps], 1)
            if torch.equal(known[:, first - keys.shape[1] :], keys):
                self.steps = steps
        return bool(self.steps)

    def layer(self) -> Layer:
        """Return the layer with its map, whose rows are the last ones if it has a cached prefix."""
        layer, settings = self.watched, self.watched.settings
        names = self.steps[0].tensors
        tensors: dict[str, Any] = {
            name: torch.cat([x.tensors[name] for x in self.steps], 1)[None] for name in names
        }
        values = tensors.pop(VALUES, None)
        evidence = [x.evidence for x in self.steps if x.evidence is not None]
        scoring = settings.scoring
        if settings.sinks is not None:
            scoring["sinks"] = settings.sinks.to("cpu", copy=True)
        m = AttentionMap(**tensors, **scoring)
        return Layer(
            *layer.layer_id,
            m,
            reduce(partial(join_evidence, mask=settings.mask), evidence),
            layer.heads,
            values,
            placement=layer.placement,
        )


@dataclass
class RequestRecord:
    """One request so far."""

    ids: list[int | None] = field(default_factory=list)
    """The token at each position that was read; None where it is not known."""
    prompt_length: int | None = None
    layers: dict[str, LayerRecord] = field(default_factory=dict)
    """By the names of their modules."""

    def read_tokens(self, first: int, ids: Sequence[int | None], before: Sequence[int]) -> None:
        """Note the tokens from position `first` on; `before` are the first tokens of the request."""
        known = [*self.ids[:first], *before[len(self.ids) : first]]
        self.ids = [*known, *[None] * (first - len(known)), *ids]

    def token_ids(self) -> Tensor | None:
        """The tokens (1, S), or None if some are not known."""
        return None if None in self.ids else torch.tensor([self.ids], device="cpu")
