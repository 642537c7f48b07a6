"""The store for the options of a capture: memory, memory with a budget, or a folder."""

from __future__ import annotations

from os import PathLike

from regard.recorder.layer import Layer
from regard.recorder.placement import ShardId
from regard.recorder.sizes import parse_bytes
from regard.recorder.storage.capture_folder import Folder
from regard.recorder.storage.shard_folder import ShardFolder
from regard.recorder.storage.stores import Store


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
        inner = Store()
    inner.keeps_maps = store == "maps"
    return inner


class BudgetStore(Store):
    """Uses at most `limit` bytes of memory, and then a temporary folder that lives as long as its layers."""

    can_wait = False

    def __init__(self, limit: int) -> None:
        super().__init__()
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
