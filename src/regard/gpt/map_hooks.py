"""Hooks that record the queries, keys and masks of a GPT's layers while it runs.

This file knows `regard.layers.Attention` and attention maps; it does not know tokens or models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.layers import Attention
from regard.maps import AttentionMap, attention_map
from regard.support.override import MethodWrappers


class LayerInputs(NamedTuple):
    """The arguments of one attention call. With a cache they are views that the next token overwrites."""

    layer: Attention
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    mask: Mask

    def attention_map(self) -> AttentionMap:
        """The weights of the call, (B, H, T, S), without building their matrix."""
        layer = self.layer
        return attention_map(
            self.q, self.k, mask=self.mask, scale=layer.scale, softcap=layer.softcap, sinks=layer.sinks
        )


@contextmanager
def record_layer_inputs(layers: Sequence[Attention]) -> Iterator[list[LayerInputs]]:
    """Append a `LayerInputs` to the returned list for every attention call that this context makes."""
    records: list[LayerInputs] = []

    def record(
        layer: Attention, attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> Tensor:
        records.append(LayerInputs(layer, q, k, mask))
        return attend(q, k, v, mask)

    wrappers = MethodWrappers()
    for layer in layers:
        # `attend` and not `forward`: its arguments are after the rotation and after the cache.
        wrappers.add(layer, "attend", functools.partial(record, layer))
    with wrappers.active():
        yield records
