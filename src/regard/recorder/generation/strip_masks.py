"""The masks of strips that grow by a forward pass, and the padding that they show."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.recorder.generation.mask_join import join_masks
from regard.recorder.generation.piecewise_mask import CallSizes
from regard.recorder.generation.strips import Addition, Strip


class StripMasks:
    """Joins the masks of strips with those of what is added; layers that share theirs share the result."""

    def __init__(self) -> None:
        self._masks: dict[tuple[object, ...], tuple[Mask, ...]] = {}

    def clear(self) -> None:
        """Forget the masks of a forward pass."""
        self._masks.clear()

    def join(self, strip: Strip, addition: Addition, order: Tensor | None) -> Mask:
        """Return the mask of a strip with an addition; layers that share their masks share the result."""
        if strip.layer.is_linear:
            return strip.mask  # causal, whatever is added
        q = addition.tensors["q"]
        B, H = q.shape[:2]
        kind, before, device = addition.step.kind, CallSizes(strip.T, strip.S), q.device
        key = (id(strip.mask), id(addition.mask), kind, before, addition.sizes, device)
        if key not in self._masks:
            mask = join_masks(strip.mask, before, addition.mask, addition.sizes, kind, order, B, H, device)
            # The two masks are stored to keep them alive, so that no id is used twice.
            self._masks[key] = (mask, strip.mask, addition.mask)
        return self._masks[key][0]


def padding_of_strips(strips: Iterable[Strip], shape: torch.Size) -> Tensor | None:
    """Return the padding (B, T) in the layers' own masks, for models that take no `attention_mask`."""
    for strip in strips:
        for conjunct in strip.mask.conjuncts():
            is_token = conjunct.key_padding(shape[1])  # (B, S)
            if is_token is not None and is_token.shape == shape:
                return is_token.cpu()
    return None
