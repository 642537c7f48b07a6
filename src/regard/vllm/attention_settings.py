"""`AttentionSettings`: what one attention layer of vLLM computes, read from its implementation.

The scale, the window, the soft cap and the sink logits are those that the implementation passes to its
kernel, never those of the model's config. An implementation that is not known here is refused by its name:
another one may mean something else by the same attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal, window
from regard.recorder.layer import LayerId
from regard.recorder.placement import Placement

IMPLEMENTATIONS = (
    "CPUAttentionBackendImpl",
    "FlashAttentionImpl",
    "FlashInferImpl",
    "TritonAttentionImpl",
)
"""The classes whose attributes are read. A class that is derived from one of them is another class."""
PLAIN_CACHES = ("auto", "float16", "bfloat16", "float32", "half", "float")


class UnsupportedLayerError(ValueError):
    """A layer whose attention cannot be read; the message is the reason."""


class AttentionSettings(NamedTuple):
    """The sizes of a layer on this rank, and what its kernel is called with."""

    heads: int
    kv_heads: int
    width: int
    """The width D of queries and keys."""
    value_width: int
    scale: float
    window: int | None = None
    """The number of keys that a query sees at most, its own included."""
    softcap: float | None = None
    sinks: Tensor | None = None
    """The sink logits (H,)."""

    @property
    def mask(self) -> Mask:
        """Which keys a query sees; the last query is aligned with the last key."""
        return causal if self.window is None else causal & window(self.window)

    @property
    def scoring(self) -> dict[str, Any]:
        """How scores are made, by the names that a call and a map have for it."""
        return {"mask": self.mask, "scale": self.scale, "softcap": self.softcap, "sinks": self.sinks}

    def first_visible(self, position: int) -> int:
        """The first key that the query at a position sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


@dataclass(frozen=True)
class WatchedLayer:
    """An attention layer of vLLM, and what is known of it before it runs."""

    layer_id: LayerId
    module: Any
    settings: AttentionSettings
    heads: range
    """The numbers of this rank's heads in the model."""
    placement: Placement | None = None
    """Where they are in the model, if other ranks have others."""


def read_settings(layer: Any) -> AttentionSettings:
    """Return the settings of an attention layer, or raise an `UnsupportedLayerError` that says why not."""
    kind, implementation = type(layer).__name__, getattr(layer, "impl", None)
    # MLAAttention caches latent vectors, and its kernels are others.
    if kind != "Attention":
        raise UnsupportedLayerError(f"{kind}, which is not supported yet")
    name = type(implementation).__name__
    if implementation is None or name not in IMPLEMENTATIONS:
        known = ", ".join(IMPLEMENTATIONS)
        raise UnsupportedLayerError(f"expected one of the implementations {known}, got {name}")
    if layer.attn_type != "decoder":
        raise UnsupportedLayerError(f"expected the attention of a decoder, got {layer.attn_type!r}")
    if implementation.kv_cache_dtype not in PLAIN_CACHES:
        raise UnsupportedLayerError(f"its cache is quantised to {implementation.kv_cache_dtype}")
    if implementation.alibi_slopes is not None:
        raise UnsupportedLayerError("it has ALiBi slopes, which are not supported yet")
    if getattr(implementation, "chunk_lookback", -1) != -1:
        raise UnsupportedLayerError("it attends by chunks, which is not supported yet")
    return AttentionSettings(
        heads=layer.num_heads,
        kv_heads=layer.num_kv_heads,
        width=layer.head_size,
        value_width=layer.head_size_v,
        scale=float(implementation.scale),
        window=_window_size(implementation.sliding_window),
        # vLLM's implementations write 0 for no soft cap, as FlashAttention does.
        softcap=implementation.logits_soft_cap or None,
        sinks=implementation.sinks,
    )


def place_heads(settings: AttentionSettings, rank: int, ranks: int, total_kv_heads: int) -> Placement | None:
    """Return where a rank's heads are in the layer of the model, or None if it has them all.

    vLLM deals them out in order. If there are more ranks than key/value heads, several ranks have the same.
    """
    if ranks == 1:
        return None
    if settings.kv_heads != max(1, total_kv_heads // ranks):
        raise UnsupportedLayerError(
            f"its {settings.kv_heads} key/value heads on this rank are not its share of the model's "
            f"{total_kv_heads}, so that they cannot be numbered"
        )
    total = settings.heads * ranks
    heads = range(rank * settings.heads, (rank + 1) * settings.heads)
    return Placement(total, tuple(sorted({head // (total // total_kv_heads) for head in heads})))


def _window_size(window: int | tuple[int, int] | None) -> int | None:
    """The number of keys in a window: the CPU's kernel takes it, the others how many earlier keys it has."""
    if isinstance(window, tuple):
        return None if window[0] < 0 else window[0] + 1
    return None if window is None or window < 0 else window
