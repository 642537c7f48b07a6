"""`regard.layers.Attention`, and with it `regard.gpt.GPT`: the keys that its caches evict.

Such a layer calls `regard.attend`, where it is heard. A cache that evicts keys passes on only those that it
still holds; the evicted ones are remembered here, so that the map shows every token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import as_mask
from regard.layers import Attention, KVCache
from regard.recorder.attention_call import AttentionCall


class CacheWatch:
    """The keys and values of all tokens that one layer's cache has been given."""

    def __init__(self, layer: Attention) -> None:
        self.layer = layer
        self._cache: KVCache | None = None
        self._mask: Mask | Tensor | None = None
        self._past: tuple[Tensor, Tensor] | None = None  # keys and values of all tokens so far

    def forward(self, forward: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
        """Run the layer's `forward` and remember the cache and the mask of this call."""
        self._cache, self._mask = options.get("cache"), options.get("mask")
        return forward(*args, **options)

    def restored(self, call: AttentionCall) -> AttentionCall:
        """Return a call with the keys, values and mask of all tokens, if all were seen here."""
        cache = self._cache
        # Only a `SinkCache` evicts keys in the middle; what others evict comes first, and strips are joined
        # without it.
        if cache is None or not cache.first:
            return call
        new, old = call.q.shape[2], cache.length - call.q.shape[2]
        k_new, v_new = (x[:, :, x.shape[2] - new :].detach() for x in (call.k, call.v))
        if (
            self._past is None
            or not old
            or self._past[0].shape[2] != old
            or len(call.k) != len(self._past[0])
        ):
            # A capture that was opened after the first tokens cannot show those that were evicted before.
            self._past = None if old else (k_new.clone(), v_new.clone())
        else:
            self._past = torch.cat([self._past[0], k_new], 2), torch.cat([self._past[1], v_new], 2)
        if self._past is None:
            return call
        # The mask over all positions: the layer's own, the call's and the cache's.
        whole: Mask = full
        for part in (self.layer.mask, None if self._mask is None else as_mask(self._mask), cache.rule):
            if part is not None:
                whole = part if whole is full else whole & part
        # An overview is of the keys that the kernel saw, without those that were evicted.
        return call._replace(k=self._past[0], v=self._past[1], mask=whole, kept=None)
