"""Opens what was saved: a capture from a folder, a map from a file.

Only `capture.json` is read at first; a layer's file is opened when the layer is first used. Everything in
`capture.json` is checked, since anyone may have written it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.maps import load as load_map
from regard.recorder.certificate import Evidence
from regard.recorder.result import Capture
from regard.recorder.storage.folder import FORMAT, INDEX, LAYER_FILE, StoredLayer

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
    """Open what was saved: `path` is a file that `map.save(file)` wrote, or a folder of `seen.save(folder)`.

    Returns a map or a capture. The tensors of a map, and the layers of a capture, are read from disk when
    they are first used.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():
        raise ValueError(
            "path: expected a folder that seen.save(folder) wrote or a file that map.save(file) wrote, "
            f"got {path}, which does not exist"
        )
    return load_map(path)


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


def _from_json(described: dict[str, Any], path: Path) -> Capture:
    """Rebuild a capture from what `folder.to_json` wrote; invalid data raises one of Python's errors."""
    fingerprint = described.get("fingerprint") or "none"  # without one, no layer is certified
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
        fingerprint=_checked(str, "fingerprint", fingerprint),
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
