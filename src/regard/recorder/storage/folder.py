"""A capture as a folder: a file for each layer, and `capture.json`, which says what they are.

Every save writes files under new names and `capture.json` last, in one step: until then the folder holds the
capture that it held before, and a save that is killed changes nothing. Layers are opened when someone looks.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.atomic import atomic_write
from regard.maps import AttentionMap
from regard.maps import load as load_map
from regard.recorder.certificate import Evidence
from regard.recorder.result import Capture, Layer, LayerData
from regard.recorder.storage import layer_file

FORMAT = "regard.capture 1"
INDEX = "capture.json"
OURS = re.compile(r"\.?layer-[\w.-]{1,200}\.safetensors(\.\w+)?")  # a leading dot: a write that was cut short


def load(path: str | os.PathLike[str]) -> AttentionMap | Capture:
    """Open what was saved: a file holds a map, a folder a capture, whose layers are read when looked at."""
    return open_folder(Path(path)) if Path(path).is_dir() else load_map(path)


def save(seen: Capture, path: str | os.PathLike[str]) -> None:
    """Write a capture to a folder. What the folder held is replaced when the new capture is whole."""
    if not seen.layers:
        raise ValueError("save: expected a capture with layers, got one that saw nothing")
    folder = Folder(path)
    layers: list[Layer] = [folder.put(layer) for layer in seen.layers]
    folder.finish(dataclasses.replace(seen, layers=layers))


class StoredLayer(Layer):
    """A layer in a file, which is opened each time someone looks."""

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
        self.folder = folder  # a temporary one lives as long as its layers

    @property
    def shape(self) -> tuple[int, int, int, int]:
        B, H, T, S = self._shape
        return B, H, T, S

    def kept(self) -> LayerData:
        found = layer_file.read(self.file)
        if found.matrix != self.shape:
            raise ValueError(
                f"{self.file} is damaged: expected a layer of {self.shape}, as {INDEX} says, "
                f"got {found.matrix}"
            )
        return found


class Folder:
    """A folder that layers are written to, one by one, as they come. Serves as a `Store`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"path: expected a folder for the capture, got {self.path}, which is a file")
        self.path.mkdir(parents=True, exist_ok=True)
        # Files of one writing have names that no other has.
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())

    @classmethod
    def temporary(cls) -> Folder:
        """A folder that goes when nobody refers to it or to a layer in it any more."""
        folder = cls(tempfile.mkdtemp(prefix="regard-"))
        weakref.finalize(folder, shutil.rmtree, folder.path, ignore_errors=True)
        return folder

    def expect(self, layers: int) -> None:
        pass

    def put(self, layer: Layer, instead_of: Layer | None = None) -> StoredLayer:
        """Write a layer, perhaps in the place of one that has grown; what comes back reads from the file."""
        if isinstance(layer, StoredLayer) and layer.file.parent.samefile(self.path):
            return layer
        file = self.path / f"layer-{_plain_name(layer.key)}-{next(self._names)}.safetensors"
        layer_file.write(layer.kept(), file)
        if isinstance(instead_of, StoredLayer) and instead_of.folder is self:
            instead_of.file.unlink(missing_ok=True)
        return StoredLayer(
            layer.number, layer.name, layer.stack, layer.shape, layer.evidence, layer.heads, file, self
        )

    def finish(self, seen: Capture) -> None:
        """The layers are all there: from now on the folder holds this capture."""
        names = [layer.file.name for layer in seen.layers if isinstance(layer, StoredLayer)]
        if len(names) != len(seen.layers):
            raise ValueError("finish: expected layers that this folder wrote")
        text = json.dumps(_described(seen, names), ensure_ascii=False, indent=1, allow_nan=False)
        with atomic_write(self.path / INDEX) as file:
            file.write_text(text, encoding="utf-8")
        for old in self.path.iterdir():
            if OURS.fullmatch(old.name) and old.name not in names:
                old.unlink(missing_ok=True)


def open_folder(path: Path) -> Capture:
    """The capture that a folder holds; reads `capture.json` only."""
    index = path / INDEX
    if not index.is_file():
        raise ValueError(
            f"path: expected a folder that a capture was saved to, got {path}, which holds no {INDEX}"
            + (": its writing was cut short" if any(OURS.fullmatch(x.name) for x in path.iterdir()) else "")
        )
    try:
        described = json.loads(index.read_text(encoding="utf-8"))
        if not isinstance(described, dict) or described.get("format") != FORMAT:
            came = described.get("format") if isinstance(described, dict) else type(described).__name__
            raise ValueError(f"expected format {FORMAT!r}, got {came!r}")
        return _rebuilt(described, path)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{index} is damaged: {type(error).__name__}: {error}") from None


def _described(seen: Capture, names: Sequence[str]) -> dict[str, Any]:
    """A capture as plain data, without its tensors."""
    layers = [
        {
            "number": layer.number,
            "name": layer.name,
            "stack": layer.stack,
            "shape": list(layer.shape),
            "heads": list(layer.heads),
            "file": name,
            "evidence": {key: _number(value) for key, value in dataclasses.asdict(layer.evidence).items()},
        }
        for layer, name in zip(seen.layers, names, strict=True)
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
        "ids": _rows(seen.ids),
        "target_tokens": seen.target_tokens,
        "target_ids": _rows(seen.target_ids),
        "real": _rows(None if seen.real is None else seen.real.int()),
    }


def _rows(table: Tensor | None) -> list[list[int]] | None:
    return None if table is None else table.tolist()


def versions() -> dict[str, str]:
    """What the capture was made with."""
    import regard

    found = {"regard": regard.__version__, "torch": torch.__version__}
    if (transformers := sys.modules.get("transformers")) is not None:
        found["transformers"] = transformers.__version__
    return found


def _number(value: Any) -> Any:
    """JSON has no infinities and no NaN: those go as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rebuilt(described: dict[str, Any], path: Path) -> Capture:
    seen = Capture(
        layers=[_layer(one, path) for one in described["layers"]],
        model=_of(str, "model", described["model"]),
        ids=_table("ids", described["ids"], torch.long),
        tokens=_texts(described["tokens"]),
        target_ids=_table("target_ids", described["target_ids"], torch.long),
        target_tokens=_texts(described["target_tokens"]),
        real=_table("real", described["real"], torch.bool),
        boundary=None if described["boundary"] is None else _of(int, "boundary", described["boundary"]),
        missing={
            _of(str, "missing", name): _of(str, "missing", what)
            for name, what in _of(dict, "missing", described.get("missing", {})).items()
        },
        fingerprint=_fingerprint(described.get("fingerprint")),
    )
    keys = [layer.key for layer in seen.layers]
    if not keys or len(set(keys)) != len(keys):
        raise ValueError(f"layers: expected at least one and each once, got {keys}")
    return seen


def _fingerprint(value: Any) -> str | None:
    """The fingerprint that was saved; a file without one is certified for its layers alone."""
    return None if value is None else str(_of(str, "fingerprint", value))


def _layer(described: dict[str, Any], path: Path) -> StoredLayer:
    name = _of(str, "file", described["file"])
    # A name, never a path: nothing outside the folder is opened, whatever the file says.
    if not OURS.fullmatch(name) or name.startswith(".") or (path / name).is_symlink():
        raise ValueError(f"file: expected the name of a layer's file in the folder, got {name!r}")
    if not (path / name).is_file():
        raise ValueError(f"file: {name} is not there")
    shape, heads = ([_of(int, key, n) for n in described[key]] for key in ("shape", "heads"))
    if len(shape) != 4 or min(shape) < 0 or len(heads) != shape[1]:
        raise ValueError(f"shape: expected (B, H, T, S) and a number for each head, got {shape} and {heads}")
    number = _of(int, "number", described["number"])
    where, stack = (_of(str, key, described[key]) for key in ("name", "stack"))
    return StoredLayer(number, where, stack, shape, _evidence(described["evidence"]), heads, path / name)


def _evidence(described: dict[str, Any]) -> Evidence:
    values = dict(described)
    for name in ("difference", "allowed", "row_sums", "scale", "sums_allowed"):
        if isinstance(values.get(name), str | int):
            values[name] = float(values[name])  # "inf" and "nan" went as text
    found = Evidence(**values)
    for name in ("difference", "allowed", "row_sums", "scale"):
        _of(float, name, getattr(found, name))
    for name in ("rows", "of"):
        _of(int, name, getattr(found, name))
    if not (found.problem is None or isinstance(found.problem, str)):
        raise ValueError(f"problem: expected text, got {found.problem!r}")
    _of(str, "mask", found.mask)
    return found


def _of(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {value!r}")
    return value


def _table(name: str, rows: Any, dtype: torch.dtype) -> Tensor | None:
    """Whole numbers (B, T) from lists of lists."""
    if rows is None:
        return None
    for row in rows:
        for number in row:
            _of(int, name, number)
    with contextlib.suppress(OverflowError):
        return torch.tensor(rows, dtype=torch.long).to(dtype)
    raise ValueError(f"{name}: expected whole numbers that fit 64 bits")


def _texts(rows: Any) -> list[list[str]] | None:
    if rows is None:
        return None
    return [[_of(str, "tokens", token) for token in row] for row in _of(list, "tokens", rows)]


def _plain_name(key: str) -> str:
    """A layer's key as part of a file name."""
    return re.sub(r"[^\w.-]", "_", key)[:100]
