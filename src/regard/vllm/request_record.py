"""`RequestRecord`: the attention of one request so far, layer by layer and position by position.

A request arrives in steps: parts of its prompt, then one token at a time. A step continues the one before it,
or begins earlier where vLLM has preempted the request and computes it again, or later where a cached prefix
was found, whose queries do not exist. This file knows positions and tensors; it does not know vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import AttentionMap
from regard.recorder.certificates.certificate import Evidence, join_evidence
from regard.recorder.layer import Layer, LayerId
from regard.recorder.placement import Placement


class LayerStep(NamedTuple):
    """The rows that one step adds to a layer, of the positions from `first` on, in the CPU's memory."""

    first: int
    q: Tensor  # (H, T, D)
    lse: Tensor  # (H, T)
    k: Tensor  # (G, T, D)
    v: Tensor | None  # (G, T, E)
    evidence: Evidence

    @property
    def stop(self) -> int:
        """The position after the last row."""
        return self.first + self.q.shape[1]

    def before(self, position: int) -> LayerStep:
        """The rows before a position."""
        T = position - self.first
        evidence = replace(self.evidence, rows=min(self.evidence.rows, T), total_rows=T)
        q, lse, k = self.q[:, :T], self.lse[:, :T], self.k[:, :T]
        return LayerStep(self.first, q, lse, k, None if self.v is None else self.v[:, :T], evidence)


class CachedPrefix(NamedTuple):
    """The keys (G, S, D) of the positions before the first row, and their values (G, S, E) if asked for.

    Those that no row sees may be zeros: blocks behind a sliding window are freed.
    """

    k: Tensor
    v: Tensor | None


@dataclass
class LayerRecord:
    """One layer of a request so far."""

    layer_id: LayerId
    heads: Sequence[int]
    """The numbers of its heads in the model."""
    mask: Mask
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    placement: Placement | None = None
    """Where the heads are in the model, if other ranks have others."""
    prefix: CachedPrefix | None = None
    steps: list[LayerStep] = field(default_factory=list)

    @property
    def stop(self) -> int | None:
        """The position after the last row; None before the first."""
        return self.steps[-1].stop if self.steps else None

    def continues(self, first: int) -> bool:
        """Whether rows from position `first` on follow the rows so far."""
        return self.stop == first

    def rewind(self, first: int, keys: Tensor) -> bool:
        """Forget the rows from position `first` on; return whether the rows before it still hold.

        `keys` (G, n, D) are the last keys before `first`, as they are cached now. Where they are not those of
        the rows before it, or where there are no such rows, nothing is left.
        """
        if self.stop is not None and first < self.stop and self.steps[0].first < first:
            kept = [
                step if step.stop <= first else step.before(first)
                for step in self.steps
                if step.first < first
            ]
            known = torch.cat([*([] if self.prefix is None else [self.prefix.k]), *(x.k for x in kept)], 1)
            if torch.equal(known[:, known.shape[1] - keys.shape[1] :], keys):
                self.steps = kept
                return True
        self.steps, self.prefix = [], None
        return False

    def layer(self) -> Layer:
        """Return the layer with its map, whose rows are the last ones if it has a cached prefix."""
        prefix = self.prefix
        k, values = ([] if prefix is None else [prefix.k]), ([] if prefix is None else [prefix.v])
        k += [step.k for step in self.steps]
        values += [step.v for step in self.steps]
        v = [x for x in values if x is not None]
        evidence = reduce(partial(join_evidence, mask=self.mask), [step.evidence for step in self.steps])
        m = AttentionMap(
            q=torch.cat([step.q for step in self.steps], 1)[None],
            k=torch.cat(k, 1)[None],
            lse=torch.cat([step.lse for step in self.steps], 1)[None],
            mask=self.mask,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        number, name, stack = self.layer_id
        all_v = torch.cat(v, 1)[None] if v else None
        return Layer(number, name, stack, m, evidence, self.heads, all_v, placement=self.placement)


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
