"""What the layers of a GPT attend with, noted as they run."""

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
    """What a layer was about to attend with; with a cache, views that hold until the next token."""

    layer: Attention
    q: Tensor
    k: Tensor
    mask: Mask

    def map(self) -> AttentionMap:
        """Its weights, with no matrix of them."""
        layer = self.layer
        return attention_map(
            self.q, self.k, mask=self.mask, scale=layer.scale, softcap=layer.softcap, sinks=layer.sinks
        )


@contextmanager
def watched(layers: Sequence[Attention]) -> Iterator[list[LayerInputs]]:
    """A look of each layer for every time that it runs inside the block, at the cost of one append."""
    looks: list[LayerInputs] = []
    with ExitStack() as covers:
        for layer in layers:
            covers.enter_context(override_attribute(layer, "attend", _noting(layer, looks)))
        yield looks


def _noting(layer: Attention, looks: list[LayerInputs]) -> Callable[..., Tensor]:
    attend = layer.attend

    def look(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        looks.append(LayerInputs(layer, q, k, mask))
        return attend(q, k, v, mask)

    return look
