"""`Recording`: takes what attentions hand it and becomes a `Seen`.

It knows tensors, places and what was asked for; it does not know where the tensors come from. Sources
(`transformers_source`, `torch_source`, …) hand it every attention as it runs, through `take`; a store keeps
the layers that come of it, in memory or elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks import Alibi, Dense, Rule
from regard.attention.rules import And, Mask, Not, Or, Rows
from regard.maps import AttentionMap
from regard.recorder.certificate import examine
from regard.recorder.seen import Layer, Seen


class Place(NamedTuple):
    """Where an attention stands in its model."""

    number: int
    """Its place in its stack, counted from 0."""
    name: str
    """The module's name: `transformer.h.0.attn`."""
    stack: str = ""
    """"" where a model has one stack; else "encoder", "decoder" or "cross"."""

    @property
    def key(self) -> str:
        """What its layer is called: "3", or "decoder.3"."""
        return f"{self.stack}.{self.number}" if self.stack else str(self.number)


class Store(Protocol):
    """Keeps the layers of a capture."""

    def put(self, layer: Layer) -> Layer:
        """Keep a layer (again, if it has grown). What comes back stands for it in `Seen`."""


class Memory:
    """Layers stay where they are."""

    def put(self, layer: Layer) -> Layer:
        return layer


class Recording:
    """What is asked for of a capture, and what came of it so far.

    - `layers`: numbers ("all stacks"), keys as "decoder.3" or module names; `heads`: numbers; None for all.
    - `dtype`: what q and k are kept in; as they are if None. `values`: keep v, too.
    - `store`: where layers go.
    """

    def __init__(
        self,
        *,
        layers: Collection[int | str] | None = None,
        heads: Collection[int] | None = None,
        dtype: torch.dtype | None = None,
        values: bool = False,
        store: Store | None = None,
        model: str = "",
    ) -> None:
        self.layers = None if layers is None else {str(layer) for layer in layers}
        self.heads = None if heads is None else sorted(set(heads))
        self.dtype, self.values = dtype, values
        self.store: Store = Memory() if store is None else store
        self.seen = Seen(model=model)

    def wants(self, place: Place) -> bool:
        """Whether this layer was asked for."""
        return self.layers is None or not self.layers.isdisjoint((str(place.number), place.key, place.name))

    def take(
        self,
        place: Place,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        output: Tensor,
        *,
        lse: Tensor,
        mask: Mask,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        problem: str | None = None,
    ) -> None:
        """An attention has run at a place.

        q (B, H, T, D), k (B, G, S, D), v (B, G, S, E), the output that the model goes on with (B, H, T, E),
        lse (B, H, T); `problem` says why it cannot be certified, if that is known.
        """
        if not self.wants(place):
            return
        q, k, v, output, lse = (x.detach() for x in (q, k, v, output, lse))
        with torch.no_grad():
            lse = lse.to(working_dtype(q.dtype))
            sinks = None if sinks is None else sinks.detach()
            map = AttentionMap(q, k, lse, mask, scale, softcap, sinks)
            evidence = examine(map, v, output, problem=problem)
            map, heads = narrowed(map, self.heads)
            map = compact(map, self.dtype)
            values = own(v) if self.values else None
        self.seen.layers.append(self.store.put(Layer(*place, map, evidence, heads, values)))

    def close(self) -> None:
        """Nothing more comes."""


def narrowed(map: AttentionMap, heads: Sequence[int] | None) -> tuple[AttentionMap, tuple[int, ...]]:
    """The map of some heads only, and their numbers."""
    H, G = map.q.shape[1], map.k.shape[1]
    if heads is None:
        return map, tuple(range(H))
    if not heads or not all(0 <= head < H for head in heads):
        raise ValueError(f"heads: expected numbers from 0 to {H - 1}, got {list(heads)}")
    readers = [head // (H // G) for head in heads]  # the key/value head of each
    groups = sorted(set(readers))
    evenly = readers == sorted(groups * (len(heads) // len(groups)))
    q, lse = map.q[:, heads], map.lse[:, heads]
    k = map.k[:, groups if evenly else readers]
    sinks = None if map.sinks is None else map.sinks[heads]
    mask = mask_of_heads(map.mask, heads)
    return AttentionMap(q, k, lse, mask, map.scale, map.softcap, sinks, map.axes), tuple(heads)


def mask_of_heads(mask: Mask, heads: Sequence[int]) -> Mask:
    """The rule for some heads only, numbered from 0 again, in any order."""
    if isinstance(mask, And | Or):
        return type(mask)(mask_of_heads(mask.left, heads), mask_of_heads(mask.right, heads))
    if isinstance(mask, Dense):
        return mask if mask.tensor.shape[1] == 1 else Dense(mask.tensor[:, heads])
    if isinstance(mask, Alibi):
        return Alibi(mask.slopes[heads])
    if isinstance(mask, Not | Rows):
        return replace(mask, inner=mask_of_heads(mask.inner, heads))
    if isinstance(mask, Rule):
        says, numbers = mask.says, torch.tensor(heads)
        return Rule(functools.wraps(says)(lambda b, h, q, k: says(b, numbers.to(h.device)[h], q, k)))
    return mask


def compact(map: AttentionMap, dtype: torch.dtype | None) -> AttentionMap:
    """The map with q, k and lse in memory of their own, no larger than they are, that nobody writes to."""
    q, k = (own(x if dtype is None else x.to(dtype)) for x in (map.q, map.k))
    return AttentionMap(q, k, own(map.lse), map.mask, map.scale, map.softcap, map.sinks, map.axes)


def own(x: Tensor) -> Tensor:
    """x, or a copy where it is part of something larger or has been written to in place before."""
    alone = x.untyped_storage().nbytes() <= 1.05 * x.nbytes
    return (
        x
        if alone and not x.is_inference() and x._version == 0
        else x.clone(memory_format=torch.contiguous_format)
    )
