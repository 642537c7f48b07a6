"""A capture as a folder: one file for each layer, and `capture.json`, which describes them.

Every save writes its files under new names and `capture.json` last, atomically. Until then the folder holds
the capture that it held before, so a save that is killed changes nothing. A layer's file is opened when the
layer is first used.
"""

from __future__ import annotations

import contextlib
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
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.atomic import atomic_write
from regard.maps import AttentionMap, storage
from regard.recorder.certificate import Evidence
from regard.recorder.layer import Layer, LayerData, LayerSettings
from regard.recorder.result import Capture
from regard.recorder.storage import layer_file
from regard.version import __version__

FORMAT = "regard.capture 1"
INDEX = "capture.json"
LAYER_FILE = re.compile(r"\.?layer-[\w.-]{1,200}\.safetensors(\.\w+)?")  # a leading dot: an unfinished write

NUMBERS = (
    "difference",
    "tolerance",
    "row_sums",
    "row_sums_tolerance",
    "scale",
    "softcap",
    "weights",
    "weights_tolerance",
    "scores",
)
"""The fields of `Evidence` that are floats, or may be."""


def load(path: str | os.PathLike[str]) -> AttentionMap | Capture:
    """Open what was saved: `map.save(file)` wrote a map, `seen.save(folder)` a capture.

    The tensors of a map, and the layers of a capture, are read from disk when they are first used.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():
        raise ValueError(
            "path: expected a folder that seen.save(folder) wrote or a file that map.save(file) wrote, "
            f"got {path}, which does not exist"
        )
    return storage.load(path)


def save(seen: Capture, path: str | os.PathLike[str]) -> None:
    """Write a capture to a folder. A capture that it holds is replaced once the new one is complete."""
    if not seen.layers:
        raise ValueError("save: expected a capture with layers, got one that captured nothing")
    folder = Folder(path)
    layers: list[Layer] = [folder.put(layer) for layer in seen.layers]
    folder.finish(dataclasses.replace(seen, layers=layers))


class StoredLayer(Layer):
    """A layer whose tensors are in a file. Every use of them opens it; its `settings` are read once.

    `shape` and `evidence` come from `capture.json`, so that neither needs the file. `folder` is the folder
    that wrote it: a temporary one is deleted with the last of its layers.
    """

    def __init__(
        self,
        number: int,
        name: str,
        stack: str,
        shape: Sequence[int],
        evidence: Evidence,
        heads: Sequence[int],
        file: Path,
        folder: Folder | None = None,
    ) -> None:
        super().__init__(number, name, stack, None, evidence, heads)
        self._shape = tuple(shape)
        self.file = file
        self.folder = folder

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (B, H, T, S) of its map."""
        B, H, T, S = self._shape
        return B, H, T, S

    @cached_property
    def settings(self) -> LayerSettings:
        """Its mask, scale, widths and so on, without any tensor."""
        return super().settings

    def data(self) -> LayerData:
        """Open the file and return its tensors, which are read from disk when they are used."""
        data = layer_file.read(self.file)
        if data.matrix != self.shape:
            raise ValueError(
                f"{self.file} is damaged: expected a layer of {self.shape}, as {INDEX} says, "
                f"got {data.matrix}"
            )
        return data


class Folder:
    """A folder that layers are written to one by one. It is a `Store`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"path: expected a folder for the capture, got {self.path}, which is a file")
        self.path.mkdir(parents=True, exist_ok=True)
        # No other save uses these names.
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())

    @classmethod
    def temporary(cls) -> Folder:
        """Make a folder that is deleted when neither it nor a layer in it is referred to any more."""
        folder = cls(tempfile.mkdtemp(prefix="regard-"))
        weakref.finalize(folder, shutil.rmtree, folder.path, ignore_errors=True)
        return folder

    def expect(self, layers: int) -> None:
        """Do nothing."""

    def put(self, layer: Layer, instead_of: Layer | None = None) -> StoredLayer:
        """Write a layer, perhaps in place of one that has grown, and return one that reads from the file."""
        if isinstance(layer, StoredLayer) and layer.file.parent.samefile(self.path):
            return layer
        name = re.sub(r"[^\w.-]", "_", str(layer.key))[:100]
        file = self.path / f"layer-{name}-{next(self._names)}.safetensors"
        layer_file.write(layer.data(), file)
        if isinstance(instead_of, StoredLayer) and instead_of.folder is self:
            instead_of.file.unlink(missing_ok=True)
        return StoredLayer(
            layer.number, layer.name, layer.stack, layer.shape, layer.evidence, layer.heads, file, self
        )

    def finish(self, seen: Capture) -> None:
        """Write `capture.json`, so that the folder holds this capture, and delete the files of older ones."""
        names = [layer.file.name for layer in seen.layers if isinstance(layer, StoredLayer)]
        if len(names) != len(seen.layers):
            raise ValueError("finish: expected layers that this folder wrote")
        text = json.dumps(_to_json(seen, names), ensure_ascii=False, indent=1, allow_nan=False)
        with atomic_write(self.path / INDEX) as file:
            file.write_text(text, encoding="utf-8")
        for path in self.path.iterdir():
            if LAYER_FILE.fullmatch(path.name) and path.name not in names:
                path.unlink(missing_ok=True)


def open_folder(path: Path) -> Capture:
    """Open the capture that a folder holds; only `capture.json` is read."""
    index = path / INDEX
    if not index.is_file():
        unfinished = any(LAYER_FILE.fullmatch(file.name) for file in path.iterdir())
        raise ValueError(
            f"path: expected a folder that seen.save(folder) wrote, got {path}, which holds no {INDEX}"
            + (": its writing was cut short" if unfinished else "")
        )
    try:
        described = json.loads(index.read_text(encoding="utf-8"))
        if not isinstance(described, dict) or described.get("format") != FORMAT:
            found = described.get("format") if isinstance(described, dict) else type(described).__name__
            raise ValueError(f"expected format {FORMAT!r}, got {found!r}")
        return _from_json(described, path)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{index} is damaged: {type(error).__name__}: {error}") from None


def versions() -> dict[str, str]:
    """Return the versions of the libraries that make this capture."""
    numbers = {"regard": __version__, "torch": torch.__version__}
    if (transformers := sys.modules.get("transformers")) is not None:
        numbers["transformers"] = transformers.__version__
    return numbers


def _to_json(seen: Capture, files: Sequence[str]) -> dict[str, Any]:
    """Describe a capture as plain data, without its tensors; `files` are the names of its layers' files."""
    layers = [
        {
            "number": layer.number,
            "name": layer.name,
            "stack": layer.stack,
            "shape": list(layer.shape),
            "heads": list(layer.heads),
            "file": file,
            "evidence": {name: _json_number(x) for name, x in dataclasses.asdict(layer.evidence).items()},
        }
        for layer, file in zip(seen.layers, files, strict=True)
    ]
    return {
        "format": FORMAT,
        "model": seen.model,
        "versions": versions(),
        "certified": seen.certificate.certified,
        "missing": seen.missing,
        "fingerprint": seen.fingerprint,
        "boundary": seen.boundary,
        "layers": layers,
        "tokens": seen.tokens,
        "ids": _json_rows(seen.ids),
        "target_tokens": seen.target_tokens,
        "target_ids": _json_rows(seen.target_ids),
        "attention_mask": _json_rows(None if seen.attention_mask is None else seen.attention_mask.int()),
    }


def _json_rows(table: Tensor | None) -> list[list[int]] | None:
    return None if table is None else table.tolist()


def _json_number(value: Any) -> Any:
    """Return infinities and NaN as text, since JSON has neither; anything else as it is."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(described: dict[str, Any], path: Path) -> Capture:
    """Rebuild a capture from what `_to_json` wrote; invalid data raises one of Python's errors."""
    fingerprint = described.get("fingerprint")  # without one, only the layers are certified, not the tokens
    seen = Capture(
        layers=[_layer(layer, path) for layer in described["layers"]],
        model=_checked(str, "model", described["model"]),
        ids=_table("ids", described["ids"], torch.long),
        tokens=_texts(described["tokens"]),
        target_ids=_table("target_ids", described["target_ids"], torch.long),
        target_tokens=_texts(described["target_tokens"]),
        attention_mask=_table("attention_mask", described["attention_mask"], torch.bool),
        boundary=None if described["boundary"] is None else _checked(int, "boundary", described["boundary"]),
        missing={
            _checked(str, "missing", name): _checked(str, "missing", kind)
            for name, kind in _checked(dict, "missing", described.get("missing", {})).items()
        },
        fingerprint=None if fingerprint is None else _checked(str, "fingerprint", fingerprint),
    )
    keys = [layer.key for layer in seen.layers]
    if not keys or len(set(keys)) != len(keys):
        raise ValueError(f"layers: expected at least one and each once, got {keys}")
    return seen


def _layer(described: dict[str, Any], path: Path) -> StoredLayer:
    file = _checked(str, "file", described["file"])
    # A name, never a path: nothing outside the folder is opened, whatever capture.json says.
    if not LAYER_FILE.fullmatch(file) or file.startswith(".") or (path / file).is_symlink():
        raise ValueError(f"file: expected the name of a layer's file in the folder, got {file!r}")
    if not (path / file).is_file():
        raise ValueError(f"file: {file} does not exist")
    shape, heads = ([_checked(int, name, n) for n in described[name]] for name in ("shape", "heads"))
    if len(shape) != 4 or min(shape) < 0 or len(heads) != shape[1]:
        raise ValueError(f"shape: expected (B, H, T, S) and a number for each head, got {shape} and {heads}")
    number = _checked(int, "number", described["number"])
    name, stack = (_checked(str, field, described[field]) for field in ("name", "stack"))
    return StoredLayer(number, name, stack, shape, _evidence(described["evidence"]), heads, path / file)


def _evidence(described: dict[str, Any]) -> Evidence:
    values = dict(described)
    for name in NUMBERS:
        if isinstance(values.get(name), str | int):
            values[name] = float(values[name])  # "inf" and "nan" are stored as text
    evidence = Evidence(**values)
    for name in NUMBERS:
        if name not in ("softcap", "weights") or getattr(evidence, name) is not None:
            _checked(float, name, getattr(evidence, name))
    for name in ("rows", "total_rows"):
        _checked(int, name, getattr(evidence, name))
    if not (evidence.problem is None or isinstance(evidence.problem, str)):
        raise ValueError(f"problem: expected text, got {evidence.problem!r}")
    _checked(str, "mask", evidence.mask)
    return evidence


def _checked(kind: type, name: str, value: Any) -> Any:
    """Return the value if it is of this type; otherwise raise a ValueError with its name."""
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {value!r}")
    return value


def _table(name: str, rows: Any, dtype: torch.dtype) -> Tensor | None:
    """Return lists of lists of integers as a tensor (B, T)."""
    if rows is None:
        return None
    for row in rows:
        for number in row:
            _checked(int, name, number)
    with contextlib.suppress(OverflowError):
        return torch.tensor(rows, dtype=torch.long).to(dtype)
    raise ValueError(f"{name}: expected integers that fit into 64 bits")


def _texts(rows: Any) -> list[list[str]] | None:
    """Return lists of lists of text, each checked."""
    if rows is None:
        return None
    return [[_checked(str, "tokens", token) for token in row] for row in _checked(list, "tokens", rows)]
