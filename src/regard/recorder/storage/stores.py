"""The stores of a capture's layers: memory with a check, and memory with a budget.

`Folder`, the store that writes to disk, is in `capture_folder`.
"""

from __future__ import annotations

from os import PathLike

import torch

from regard.recorder.layer import Layer
from regard.recorder.placement import ShardId
from regard.recorder.sizes import format_bytes, free_memory, parse_bytes
from regard.recorder.storage.capture_folder import Folder
from regard.recorder.storage.shard_folder import ShardFolder
from regard.recorder.storage.store_base import Store
from regard.recorder.summary import summary_size

SMALL = 1 << 26  # the bytes of a capture for which it is not worth asking how many are free


class TooLargeError(ValueError, MemoryError):
    """A capture that does not fit in memory."""


def store_for(
    folder: str | PathLike[str] | None, budget: int | str | None, store: str, shard: ShardId | None = None
) -> Store:
    """Return the store for the options `folder`, `budget` and `store` of `regard.capture`.

    `shard` says which part of the capture this process makes, if several make it.
    """
    if store not in ("maps", "statistics"):
        raise ValueError(f"store: expected 'maps' or 'statistics', got {store!r}")
    inner: Store
    if folder is not None:
        inner = Folder(folder) if shard is None else ShardFolder(folder, shard)
    elif budget is not None:
        inner = BudgetStore(parse_bytes("budget", budget))
    else:
        inner = MemoryStore()
    inner.keeps_maps = store == "maps"
    return inner


class BudgetStore(Store):
    """Uses at most `limit` bytes of memory, and then a temporary folder that lives as long as its layers."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._folder: Folder | None = None

    def _put(self, layer: Layer, instead_of: Layer | None) -> Layer:
        # In memory if the budget allows it; otherwise in the temporary folder.
        if instead_of is not None and instead_of.in_memory:
            self.used -= instead_of.nbytes
        if self.used + layer.nbytes <= self.limit:
            self.used += layer.nbytes
            return layer
        self._folder = self._folder or Folder.temporary()
        return self._folder.put(layer, instead_of)

    def release(self) -> None:
        """Release the temporary folder."""
        if self._folder is not None:
            self._folder.release()


class MemoryStore(Store):
    """Keeps layers in memory, and raises at the first one if all that are expected would not fit."""

    can_wait = True

    def __init__(self) -> None:
        self._expected = self._stored = 0
        self._unchecked = 0  # the bytes that may be stored before the free ones are asked for again

    def expect(self, layers: int) -> None:
        """Count the layers to come."""
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
            summary = summary_size(*layer.shape)
            raise TooLargeError(too_large_message(layer.nbytes, self._expected, free, device, summary))


def too_large_message(layer: int, count: int, free: int, device: torch.device, summary: int) -> str:
    """Say why a capture does not fit and which options make it smaller.

    `layer` and `summary` are the bytes of one layer and of its summary, `count` the number of layers, and
    `free` the free bytes on `device`.
    """
    return (
        f"this capture would take {format_bytes(layer * count)} ({count} layers of {format_bytes(layer)}), "
        f"and {format_bytes(free)} are free on {device}. To make it smaller: layers=[0] "
        f"({format_bytes(layer)} a layer); heads=[0, 1]; dtype=torch.bfloat16; "
        "folder=…, to write each layer there when it has run; "
        f'budget="{format_bytes(free // 2).replace(" ", "")}", to write the rest to disk; '
        f'store="statistics" ({format_bytes(summary * count)}). regard.capture_size(model, tokens) computes '
        "this in advance."
    )
