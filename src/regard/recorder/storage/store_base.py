"""`Store`: keeps the layers of a capture while a model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.recorder.layer import Layer, LayerData

if TYPE_CHECKING:
    from regard.recorder.result import Capture


class Store:
    """Keeps the layers of a capture while a model runs."""

    can_wait = False
    """Whether it may get the layers when their forward pass ends, and not each as soon as it has run."""
    keeps_maps = True
    """Whether it keeps the maps of layers, and not only their summaries and perhaps their values."""

    def expect(self, layers: int) -> None:
        """Announce that `layers` more layers will come, as far as a source can tell."""

    def has_room(self, nbytes: int, device: torch.device) -> bool:
        """Return whether as many layers as are expected surely fit, if one takes at most `nbytes`."""
        return True

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        """Store a layer and return the one to list in the `Capture`, which may read from a file.

        `instead_of` is a layer that this store returned earlier and that `layer` replaces because it has
        grown.
        """
        if not self.keeps_maps:
            data = LayerData(values=layer.values, summary=layer.summary)
            layer = layer._with_data(data, layer.evidence)
        return self._put(layer, instead_of)

    def _put(self, layer: Layer, instead_of: Layer | None) -> Layer:
        raise NotImplementedError

    def finish(self, seen: Capture) -> None:
        """Complete the capture: `seen` holds the layers that `put` returned."""

    def release(self) -> None:
        """Let go of what the store holds while it is written to, whether or not the capture is complete."""
