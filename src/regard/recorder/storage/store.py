"""The protocol of a store, which keeps the layers of a capture, and the simplest one: plain memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from regard.recorder.layer import Layer

if TYPE_CHECKING:
    from regard.recorder.result import Capture


class Store(Protocol):
    """Keeps the layers of a capture while a model runs."""

    def expect(self, layers: int) -> None:
        """Announce that `layers` more layers will come, as far as a source can tell."""

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        """Store a layer and return the one to list in the `Capture`, which may read from a file.

        `instead_of` is a layer that this store returned earlier and that `layer` replaces because it has
        grown.
        """

    def finish(self, seen: Capture) -> None:
        """Complete the capture: `seen` holds the layers that `put` returned."""

    def release(self) -> None:
        """Let go of what the store holds while it is written to, whether or not the capture is complete."""


class MemoryStore:
    """Leaves every layer in memory."""

    def expect(self, layers: int) -> None:
        """Do nothing."""

    def has_room(self, nbytes: int, device: torch.device) -> bool:
        """Return True: nothing is checked."""
        return True

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        """Return the layer as it is."""
        return layer

    def finish(self, seen: Capture) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""
