"""`capture.json`, which describes a capture in a folder, and the layers that it says are in files.

A layer's file is opened when the layer is first used. This file knows descriptions; what is written to a
folder, and when, is in `capture_folder`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
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
from regard.recorder.storage.picture_files import PicturesDescription, describe_pictures
from regard.recorder.storage.stores import Store
from regard.support.files import CaptureFileError
from regard.support.plain_data import to_plain
from regard.version import __version__

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

FORMAT = "regard.capture 1"
INDEX = "capture.json"
SHARDS = "shards.json"
"""The file that a folder has in place of `capture.json` if its capture was made by several processes."""
SHARDS_FORMAT = "regard.shards 1"
# Only files of such names are deleted, so that a user's own stay. A leading dot is that of an unfinished
# write.
LAYER_FILE = re.compile(r"\.?layer-[\w.-]{1,200}\.safetensors(\.\w+)?")


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
        self, described: LayerDescription, path: Path, shard: ShardId | None, folder: Store | None = None
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
