"""Writes a capture to a folder: one file for each layer, and `capture.json`, which describes them.

Every save writes its files under new names and `capture.json` last, atomically. Until then the folder holds
the capture that it held before, so a save that is killed changes nothing. A layer's file is opened when the
layer is first used. A folder may hold a shard of a capture that several processes make: see `shard_folder`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.recorder.certificates.certificate import Evidence
from regard.recorder.layer import Layer, LayerData
from regard.recorder.placement import Placement, ShardId
from regard.recorder.storage import layer_file
from regard.recorder.storage.picture_files import (
    PICTURE_FILE,
    PicturesDescription,
    describe_pictures,
    write_pictures,
)
from regard.recorder.storage.stores import Store
from regard.support.file_lock import FileLock
from regard.support.files import (
    CaptureFileError,
    atomic_write,
    check_folder_writable,
    make_folder,
    remove_temporary_files,
)
from regard.support.plain_data import to_plain
from regard.version import __version__

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

FORMAT = "regard.capture 1"
INDEX = "capture.json"
SHARDS = "shards.json"
"""The file that a folder has in place of `capture.json` if its capture was made by several processes."""
SHARDS_FORMAT = "regard.shards 1"
LOCK = ".lock"
# Only files of such names are deleted, so that a user's own stay. A leading dot is that of an unfinished
# write.
LAYER_FILE = re.compile(r"\.?layer-[\w.-]{1,200}\.safetensors(\.\w+)?")


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


class LayerDescription(NamedTuple):
    """A layer as `capture.json` has it; the checksum is compared with that of its file at the first use."""

    number: int
    name: str
    stack: str
    shape: tuple[int, int, int, int]
    heads: tuple[int, ...]
    file: str
    checksum: int
    evidence: Evidence
    placement: Placement | None = None

    @classmethod
    def of(cls, layer: Layer, file: str, checksum: int) -> LayerDescription:
        """Describe a layer as it is now, whose tensors are in a file."""
        evidence, placement = layer.evidence, layer.placement
        return cls(*layer.layer_id, layer.shape, layer.heads, file, checksum, evidence, placement)


class StoredLayer(Layer):
    """A layer whose tensors are in a file. Every use of them opens it; its `settings` are read once.

    `shape` and `evidence` are as `described`, so that neither needs the file, which is in the folder `path`
    and says which `shard` it belongs to; `folder` is what has written it.
    """

    def __init__(
        self, described: LayerDescription, path: Path, shard: ShardId | None, folder: Folder | None = None
    ) -> None:
        number, name, stack, shape, heads, file, checksum, evidence, placement = described
        super().__init__(number, name, stack, None, evidence, heads, placement=placement)
        self._shape = shape
        self.file, self.checksum, self.shard = path / file, checksum, shard
        self.folder = folder  # that wrote it: a temporary one is deleted with the last of its layers
        self._is_checked = False

    def data(self) -> LayerData:
        """Open the file and return its tensors, which are read from disk when they are used."""
        is_map = self.placement is None or self.placement.is_map
        data = layer_file.read(self.file, shard_label(self, self.shard), is_map)
        if data.matrix != self.shape:
            raise CaptureFileError(
                f"{self.file} is damaged: expected a layer of {self.shape}, as {INDEX} says, "
                f"got {data.matrix}"
            )
        if not self._is_checked and (found := layer_file.checksum(self.file)) != self.checksum:
            raise CaptureFileError(
                f"{self.file} is damaged: expected a file with the checksum {self.checksum:08x}, as "
                f"{INDEX} says, got {found:08x}"
            )
        self._is_checked = True
        return data


def shard_label(layer: Layer, shard: ShardId | None) -> str:
    """Return what a layer's file says about its shard, so that files of two ranks are never confused."""
    return "" if shard is None else json.dumps([*shard, layer.key, layer.heads, layer.placement])


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


def versions() -> dict[str, str]:
    """Return the versions of the libraries that make this capture."""
    numbers = {"regard": __version__, "torch": torch.__version__}
    for name in ("transformers", "vllm"):
        # A library that is not imported took no part.
        if (library := sys.modules.get(name)) is not None:
            numbers[name] = library.__version__
    return numbers


class PredictionsDescription(NamedTuple):
    """Predictions as `capture.json` has them: flat lists; a loss that is not known is null."""

    likeliest: list[int]
    probabilities: list[float]
    losses: list[float | None]
    ranks: list[int]
    words: dict[int, str]


@dataclass(frozen=True)
class CaptureDescription:
    """A capture as `capture.json` has it: its fields have the names of those of a `Capture`."""

    model: str
    layers: list[LayerDescription]
    ids: list[list[int]] | None = None
    tokens: list[list[str]] | None = None
    target_ids: list[list[int]] | None = None
    target_tokens: list[list[str]] | None = None
    attention_mask: list[list[int]] | None = None
    boundary: int | None = None
    missing: dict[str, str] = field(default_factory=dict)
    other_mixers: dict[str, str] = field(default_factory=dict)
    is_whole: bool = True
    edits: tuple[str, ...] = ()
    fingerprint: str | None = None
    shard: ShardId | None = None
    predictions: PredictionsDescription | None = None
    pictures: PicturesDescription | None = None


def to_json(seen: Capture, stored: Sequence[StoredLayer], pictures: Sequence[str]) -> dict[str, Any]:
    """Describe a capture as plain data, without its tensors.

    `stored` are its layers, and `pictures` the names of its pictures' files.
    """
    described = {x.name: getattr(seen, x.name) for x in dataclasses.fields(CaptureDescription)}
    described |= {name: x.long().tolist() for name, x in described.items() if isinstance(x, Tensor)}
    described["layers"] = [LayerDescription.of(x, x.file.name, x.checksum) for x in stored]
    if (predictions := seen.predictions) is not None:
        lists = {
            name: getattr(predictions, name).flatten().tolist() for name in PredictionsDescription._fields[:4]
        }
        lists["losses"] = [None if math.isnan(loss) else loss for loss in lists["losses"]]
        described["predictions"] = PredictionsDescription(**lists, words=predictions.words)
    if seen.pictures is not None:
        described["pictures"] = describe_pictures(seen.pictures, pictures)
    about = {"format": FORMAT, "versions": versions(), "certified": seen.certificate.certified}
    return {**about, **to_plain(described)}
