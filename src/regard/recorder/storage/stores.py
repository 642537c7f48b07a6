"""Where the layers of a capture go: into memory as far as it reaches, into a folder, or into a summary."""

from __future__ import annotations

from os import PathLike

import torch

from regard.recorder.recording import Memory, Store
from regard.recorder.result import Capture, Layer
from regard.recorder.sizes import free_memory, parse_bytes, written
from regard.recorder.storage.folder import Folder
from regard.recorder.summary import summary_size


class TooLargeError(ValueError, MemoryError):
    """A capture that memory cannot hold."""


def store_for(to: str | PathLike[str] | None, budget: int | str | None, keep: str) -> Store:
    """What capture's options ask for."""
    if keep not in ("maps", "statistics"):
        raise ValueError(f"keep: expected 'maps' or 'statistics', got {keep!r}")
    if to is not None:
        store: Store = Folder(to)
    elif budget is not None:
        store = Budgeted(parse_bytes("budget", budget))
    else:
        store = Cautious()
    return StatisticsStore(store) if keep == "statistics" else store


class StatisticsStore:
    """Keeps summaries, and no queries and keys."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def expect(self, layers: int) -> None:
        self.inner.expect(layers)

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        small = Layer(
            layer.number,
            layer.name,
            layer.stack,
            None,
            layer.evidence,
            layer.heads,
            layer.values,
            layer.summary,
        )
        return self.inner.put(small, instead_of)

    def finish(self, seen: Capture) -> None:
        self.inner.finish(seen)


class Budgeted:
    """Memory up to a limit; what comes after goes to a temporary folder that lives as long as its layers."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._folder: Folder | None = None

    def expect(self, layers: int) -> None:
        pass

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        if instead_of is not None and instead_of.in_memory:
            self.used -= instead_of.nbytes
        if self.used + layer.nbytes <= self.limit:
            self.used += layer.nbytes
            return layer
        self._folder = self._folder or Folder.temporary()
        return self._folder.put(layer, instead_of)

    def finish(self, seen: Capture) -> None:
        pass


class Cautious(Memory):
    """Memory, unless the layers that are to come would not fit in what is free."""

    def __init__(self) -> None:
        self._expected = self._layers = 0

    def expect(self, layers: int) -> None:
        self._expected += layers

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        if instead_of is None:
            self._layers += 1
            if self._layers <= self._expected and layer.in_memory:
                self._check(layer, self._expected)
        return layer

    def _check(self, layer: Layer, count: int) -> None:
        kept = layer.kept()
        device = (kept.map.q if kept.map is not None else layer.summary.entropy).device
        free = free_memory(device)
        coming = layer.nbytes * (count - self._layers)  # this one is there already
        if free is not None and coming > free:
            B, H, T, S = layer.shape
            raise TooLargeError(refusal(layer.nbytes, count, free, device, summary_size(B, H, T, S)))


def refusal(each: int, count: int, free: int, device: torch.device, summary: int) -> str:
    """Why a capture is refused, and the ways to make it smaller."""
    return (
        f"this capture would keep {written(each * count)} ({count} layers of {written(each)}), and "
        f"{written(free)} are free on {device}. Ways to shrink it: layers=[0] ({written(each)} a layer); "
        f"heads=[0, 1]; dtype=torch.bfloat16; to=folder, written there as layers run; "
        f'budget="{written(free // 2).replace(" ", "")}", the rest on disk; '
        f'keep="statistics" ({written(summary * count)}). regard.capture_size(model, tokens) knows before.'
    )
