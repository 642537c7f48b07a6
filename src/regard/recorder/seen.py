"""`Seen`: what a capture saw, layer by layer. It knows maps, tokens and names; it does not know models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.certificate import Certificate, Evidence


@dataclass(frozen=True)
class Layer:
    """One attention of a model, as it ran."""

    number: int
    """Its place in its stack, counted from 0."""
    name: str
    """Where it stands in the model: `transformer.h.0.attn`."""
    stack: str
    """"" where a model has one stack; else "encoder", "decoder" or "cross" (the decoder on the encoder)."""
    map: AttentionMap
    """(B, H, T, S)."""
    evidence: Evidence
    heads: tuple[int, ...]
    """The number in the model of each head of the map."""
    values: Tensor | None = None
    """(B, G, S, E), if the capture was asked to keep them."""

    @property
    def key(self) -> str:
        """What the layer is called: "3", or "decoder.3"."""
        return f"{self.stack}.{self.number}" if self.stack else str(self.number)


@dataclass
class Seen:
    """What a capture saw. `seen[3]` is the map of layer 3, `seen[3, 5]` that of its head 5."""

    layers: list[Layer] = field(default_factory=list)
    model: str = ""
    """What the model calls itself."""
    ids: Tensor | None = None
    """The tokens that were read (and written, under `generate`), (B, T)."""
    tokens: list[list[str]] | None = None
    """The same as text, one list a batch entry."""
    real: Tensor | None = None
    """Which of them are text and not padding, boolean (B, T); None where all are."""
    boundary: int | None = None
    """How many tokens were the prompt's, where the rest was generated."""

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AttentionMap]:
        return (layer.map for layer in self.layers)

    def layer(self, key: int | str) -> Layer:
        """A layer by its number, or by its name where there are several stacks: "decoder.3", "cross.0"."""
        found = [x for x in self.layers if x.key == str(key) or x.name == key]
        if len(found) != 1:
            known = ", ".join(repr(x.key) for x in self.layers) or "none: nothing ran inside the block"
            raise KeyError(f"layer: expected one of those captured ({known}), got {key!r}")
        return found[0]

    def __getitem__(self, index: int | str | tuple[int | str, int]) -> Any:
        key, head = index if isinstance(index, tuple) else (index, None)
        layer = self.layer(key)
        if head is None:
            return layer.map
        if head not in layer.heads:
            raise KeyError(f"head: expected one of those captured {list(layer.heads)}, got {head!r}")
        return layer.map[:, layer.heads.index(head)]

    def stack(self, name: str) -> list[AttentionMap]:
        """The maps of one stack in order: "encoder", "decoder" or "cross"."""
        return [layer.map for layer in self.layers if layer.stack == name]

    @property
    def certificate(self) -> Certificate:
        """Layer by layer, how far the maps are from what the model really used."""
        return Certificate([x.key for x in self.layers], [x.evidence for x in self.layers])

    @property
    def nbytes(self) -> int:
        """What the maps keep."""
        return sum(map.nbytes for map in self)

    def __repr__(self) -> str:
        if not self.layers:
            return "Seen(nothing yet)"
        certified = sum(found.certified for found in self.certificate)
        shape = "×".join(map(str, self.layers[0].map.shape))
        return f"Seen({self.model}, {len(self)} layers of {shape}, {certified} certified)"
