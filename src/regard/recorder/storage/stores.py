"""`Store`: keeps the layers of a capture while a model runs, in memory; other stores write them to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.recorder.layer import Layer, LayerData
from regard.recorder.sizes import format_bytes, free_memory
from regard.recorder.summary import summary_size

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

SMALL = 1 << 26  # the bytes of a capture for which it is not worth asking how many are free


class TooLargeError(ValueError, MemoryError):
    """A capture that does not fit in memory."""


class Store:
    """Keeps the layers of a capture, and raises at the first one if all that are expected would not fit."""

    can_wait = True
    """Whether it may get the layers when their forward pass ends, and not each as soon as it has run."""
    keeps_maps = True
    """Whether it keeps the maps of layers, and not only their summaries and perhaps their values."""

    def __init__(self) -> None:
        self._expected = self._stored = 0
        self._unchecked = 0  # the bytes that may be stored before the free ones are asked for again

    def expect(self, layers: int) -> None:
        """Announce that `layers` more layers will come, as far as a source can tell."""
        self._expected += layers

    def has_room(self, nbytes: int, device: torch.device) -> bool:
        """Return whether as many layers as are expected surely fit, if one takes at most `nbytes`."""
        if (total := nbytes * self._expected) <= SMALL:
            return True
        free = free_memory(device)
        if free is not None and total > free:
            return False
        self._unchecked = (free or 0) // 16  # as when a layer is put
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
        if instead_of is None:
            self._stored += 1
            if self._stored <= self._expected and layer.in_memory:
                self._check(layer)
        return layer

    def _check(self, layer: Layer) -> None:
        self._unchecked -= layer.nbytes
        if self._unchecked > 0 or layer.nbytes * self._expected <= SMALL:
            return
        attention_map = layer.data().map
        device = (layer.summary.entropy if attention_map is None else attention_map.q).device
        free = free_memory(device)
        # Asked again when a sixteenth of it is filled, since others use memory as well.
        self._unchecked = (free or 0) // 16
        to_come = layer.nbytes * (self._expected - self._stored)  # this one is in memory already
        if free is not None and to_come > free:
            size, count, summary = layer.nbytes, self._expected, summary_size(*layer.shape)
            raise TooLargeError(
                f"this capture would take {format_bytes(size * count)} ({count} layers of "
                f"{format_bytes(size)}), and {format_bytes(free)} are free on {device}. To make it smaller: "
                f"layers=[0] ({format_bytes(size)} a layer); heads=[0, 1]; dtype=torch.bfloat16; "
                "folder=…, to write each layer there when it has run; "
                f'budget="{format_bytes(free // 2).replace(" ", "")}", to write the rest to disk; '
                f'store="statistics" ({format_bytes(summary * count)}). regard.capture_size(model, tokens) '
                "computes this in advance."
            )

    def finish(self, seen: Capture) -> None:
        """Complete the capture: `seen` holds the layers that `put` returned."""

    def release(self) -> None:
        """Let go of what the store holds while it is written to, whether or not the capture is complete."""
