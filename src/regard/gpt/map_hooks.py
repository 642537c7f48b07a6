"""Hooks that record the queries, keys and masks of a GPT's layers while it runs.

This file knows `regard.layers.Attention` and attention maps; it does not know tokens or models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.layers import Attention
from regard.maps import AttentionMap, attention_map
from regard.override import override_attribute


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
    """Append a `LayerInputs` to the returned list for every attention call inside the block."""
    records: list[LayerInputs] = []
    with ExitStack() as overrides:
        for layer in layers:
            overrides.enter_context(override_attribute(layer, "attend", _recorder(layer, records)))
        yield records


def _recorder(layer: Attention, records: list[LayerInputs]) -> Callable[..., Tensor]:
    """The layer's `attend`, which also appends its arguments to `records`."""
    attend = layer.attend

    def record(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        records.append(LayerInputs(layer, q, k, mask))
        return attend(q, k, v, mask)

    return record
