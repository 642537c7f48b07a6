"""Writes a capture to a folder, as its model runs or afterwards: a file for each layer, and `capture.json`.

Every save writes its files under new names and `capture.json` last, atomically. Until then the folder holds
the capture that it held before, so a save that is killed changes nothing. Several processes that make a
capture together write a folder each, inside of one: see `ShardFolder`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.recorder.layer import Layer
from regard.recorder.placement import SHARD_FOLDER, ShardId
from regard.recorder.sizes import parse_bytes
from regard.recorder.storage import layer_file
from regard.recorder.storage.capture_index import (
    INDEX,
    LAYER_FILE,
    SHARDS,
    SHARDS_FORMAT,
    LayerDescription,
    StoredLayer,
    shard_label,
    to_json,
)
from regard.recorder.storage.picture_files import PICTURE_FILE, write_pictures
from regard.recorder.storage.stores import Store
from regard.support.file_lock import FileLock, InUseError
from regard.support.files import (
    atomic_write,
    check_folder_writable,
    make_folder,
    remove_temporary_files,
    write_error,
)

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

LOCK = ".lock"


def save(seen: Capture, path: str | os.PathLike[str]) -> None:
    """Write a capture to a folder. A capture that it holds is replaced once the new one is complete."""
    if not seen.layers:
        raise ValueError("save: expected a capture with layers, got one that captured nothing")
    write_capture(seen, Folder(path))


def write_capture(seen: Capture, folder: Folder) -> None:
    """Write all layers of a capture to a folder, and then `capture.json`."""
    try:
        layers = [folder.put(layer) for layer in seen.layers]
        folder.finish(dataclasses.replace(seen, layers=layers))
    finally:
        folder.release()


def save_shard(seen: Capture, root: str | os.PathLike[str], shard: ShardId) -> None:
    """Write this rank's part of a capture; the capture is complete when all ranks have written theirs."""
    write_capture(seen, ShardFolder(root, shard))


def store_for(
    folder: str | os.PathLike[str] | None, budget: int | str | None, store: str, shard: ShardId | None = None
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


class Folder(Store):
    """A folder that layers are written to one by one.

    From the first layer that is put until `release` no other capture can be written to it: an `InUseError`
    says who writes. `shard` says which part of a capture it gets, if several processes make the capture;
    further `places` are kept from others, too.
    """

    can_wait = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        shard: ShardId | None = None,
        places: Sequence[Path] = (),
    ) -> None:
        super().__init__()
        self.path, self.shard = Path(path), shard
        make_folder("path", self.path, "a folder for the capture")
        if (self.path / SHARDS).exists():
            raise ValueError(
                f"path: expected a folder for the capture of one process, got {self.path}, which holds one "
                "of several: choose another folder"
            )
        check_folder_writable("path", self.path)
        self._places, self._locks = [self.path, *places], list[FileLock]()
        # Another capture that writes here is refused now, before the model runs.
        self._own()
        self.release()  # until the first layer comes, which may be never
        # No other save uses these names.
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())

    @classmethod
    def temporary(cls) -> Folder:
        """Make a folder that is deleted when neither it nor a layer in it is referred to any more."""
        folder = cls(tempfile.mkdtemp(prefix="regard-"))
        # Unlike `__del__`, a finalizer surely runs when Python exits.
        weakref.finalize(folder, shutil.rmtree, folder.path, ignore_errors=True)
        return folder

    def __deepcopy__(self, memo: dict[int, Any]) -> Folder:
        """Return the folder itself, whose files the copies of its layers read."""
        return self

    def release(self) -> None:
        """Let other captures be written to the folder."""
        while self._locks:
            self._locks.pop().release()

    def _own(self) -> None:
        """Keep other captures from being written to the folder."""
        for place in self._places[len(self._locks) :]:
            self._locks.append(FileLock(place / LOCK, "path", place))

    def _put(self, layer: Layer, instead_of: Layer | None) -> Layer:
        # Written to a file, from which the layer that is returned reads.
        self._own()
        # A capture may be saved where it came from.
        if isinstance(layer, StoredLayer) and layer.file.parent.samefile(self.path):
            return layer
        # A key may be any module's name, and file systems allow 255 bytes.
        name = re.sub(r"[^\w.-]", "_", str(layer.key))[:100]
        file = self.path / f"layer-{name}-{next(self._names)}.safetensors"
        layer_file.write(layer.data(), file, shard_label(layer, self.shard))
        if isinstance(instead_of, StoredLayer) and instead_of.folder is self:
            instead_of.file.unlink(missing_ok=True)
        described = LayerDescription.of(layer, file.name, layer_file.checksum(file))
        return StoredLayer(described, self.path, self.shard, self)

    def finish(self, seen: Capture) -> None:
        """Write `capture.json`, so that the folder holds this capture, and delete the files of older ones."""
        stored = [layer for layer in seen.layers if isinstance(layer, StoredLayer)]
        if len(stored) != len(seen.layers):
            raise ValueError("finish: expected layers that this folder wrote")
        self._own()
        seen.shard = self.shard
        if seen.fingerprint is None:  # a capture that was put together by hand
            seen.seal()
        pictures = write_pictures(seen.pictures, self.path, next(self._names))
        # NaN is not JSON, and other readers would refuse the file.
        text = json.dumps(to_json(seen, stored, pictures), ensure_ascii=False, indent=1, allow_nan=False)
        with atomic_write(self.path / INDEX) as file:
            file.write_text(text, encoding="utf-8")
        remove_temporary_files(self.path, "layer-*.safetensors")
        remove_temporary_files(self.path, "picture-*.png")
        names = [layer.file.name for layer in stored]
        for path in self.path.iterdir():
            is_ours = LAYER_FILE.fullmatch(path.name) or PICTURE_FILE.fullmatch(path.name)
            if is_ours and path.name not in (*names, *pictures):
                path.unlink(missing_ok=True)


class ShardFolder(Folder):
    """The folder of one rank inside the folder `root` of a capture that several processes make together.

        run1/
        ├── shards.json                  {"format": "regard.shards 1", "run": "9f2c…", "of": 2}
        ├── rank-0-of-2-9f2c…/           an ordinary folder of a capture: the shard of rank 0
        │   ├── capture.json
        │   └── layer-0-….safetensors  …
        └── rank-1-of-2-9f2c…/

    A rank writes what it has computed and certified, and nothing else: its layers, each with the numbers in
    the model of its heads (`Layer.heads`) and of its key/value heads, rows and keys (`Layer.placement`). A
    rank that has none of the layers writes a shard without layers. All ranks give the same ids, boundary and
    edits, and the same `run`, one `new_run()` that all were told. No rank waits for another: the one that
    finishes last writes `shards.json`, and until then the folder holds the capture that it held before.
    `regard.load("run1")` joins the shards as they are used.

    Rank 0 keeps other captures from being written to `root` until it releases the folder.
    """

    def __init__(self, root: str | os.PathLike[str], shard: ShardId) -> None:
        self.root = Path(root)
        if (self.root / INDEX).exists():
            raise ValueError(
                f"path: expected a folder for the ranks of a capture, got {self.root}, which holds a capture "
                "of one process: choose another folder"
            )
        places = [self.root] if shard.rank == 0 else []
        super().__init__(self.root / shard.check().folder, shard, places)

    def finish(self, seen: Capture) -> None:
        """Write `capture.json` of this rank, and `shards.json` if all other ranks have written theirs."""
        super().finish(seen)
        self._commit()

    def _commit(self) -> None:
        """Write `shards.json` if all shards are there, and delete those of other runs.

        Of the ranks that finish at once, several may do this: they write the same.
        """
        assert self.shard is not None
        run, _, of = self.shard
        names = {ShardId(run, rank, of).folder for rank in range(of)}
        if not all((self.root / name / INDEX).exists() for name in names):
            return
        try:
            with atomic_write(self.root / SHARDS) as file:
                file.write_text(json.dumps({"format": SHARDS_FORMAT, "run": run, "of": of}), encoding="utf-8")
        except OSError as error:
            raise write_error("path", self.root, error) from None
        for folder in self.root.iterdir():
            # A run that is still being written keeps its shards.
            if SHARD_FOLDER.fullmatch(folder.name) and folder.name not in names and not _is_in_use(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    """Whether a process writes to the folder of a rank."""
    try:
        FileLock(folder / LOCK, "path", folder).release()
    except InUseError:
        return True
    except OSError:  # no folder any more, or no folder at all
        pass
    return False


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
