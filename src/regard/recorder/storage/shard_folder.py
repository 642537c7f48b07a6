"""Writes a capture that several processes make together: a folder in which each rank has a folder of its own.

    run1/
    ├── shards.json                      {"format": "regard.shards 1", "run": "9f2c…", "of": 2}
    ├── rank-0-of-2-9f2c…/               an ordinary folder of a capture: the shard of rank 0
    │   ├── capture.json
    │   └── layer-0-….safetensors  …
    └── rank-1-of-2-9f2c…/

A rank writes what it has computed and certified, and nothing else: its layers, each with the numbers in the
model of its heads (`Layer.heads`) and of its key/value heads, rows and keys (`Layer.placement`). A rank that
has none of the layers writes a shard without layers. `regard.load("run1")` joins the shards as they are used.

A writer does this on every rank, where `run` is one `new_run()` that all ranks were told:

    store = ShardFolder("run1", ShardId(run, rank, ranks))
    try:
        layers = [store.put(layer) for layer in …]   # Layer(…, heads=(2, 3), placement=Placement(4, (1,)))
        store.finish(Capture(layers=layers, model=…, ids=…, tokens=…))
    finally:
        store.release()

or, with a capture in memory, `save_shard(seen, "run1", ShardId(run, rank, ranks))`. All ranks give the same
ids, boundary and edits. No rank waits for another: the one that finishes last writes `shards.json`, and until
then the folder holds the capture that it held before. All writes are atomic: a killed rank changes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from regard.recorder.placement import SHARD_FOLDER, ShardId
from regard.recorder.storage.capture_folder import INDEX, LOCK, SHARDS, SHARDS_FORMAT, Folder, write_capture
from regard.support.file_lock import FileLock, InUseError
from regard.support.files import atomic_write, write_error

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture


def save_shard(seen: Capture, root: str | os.PathLike[str], shard: ShardId) -> None:
    """Write this rank's part of a capture; the capture is complete when all ranks have written theirs."""
    write_capture(seen, ShardFolder(root, shard))


class ShardFolder(Folder):
    """The folder of one rank inside the folder `root` of a capture.

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
