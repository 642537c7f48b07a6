"""Opens what was saved: a capture from a folder, a map from a file.

Only `capture.json` is read at first; a layer's file is opened when the layer is first used. Everything in
`capture.json` is checked, since anyone may have written it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps import loader as map_loader
from regard.recorder.capture_result import Capture
from regard.recorder.layer import LayerMap
from regard.recorder.placement import MAX_RANKS, SHARD_FOLDER, Placement, ShardId
from regard.recorder.storage.capture_index import (
    FORMAT,
    INDEX,
    LAYER_FILE,
    SHARDS,
    SHARDS_FORMAT,
    CaptureDescription,
    LayerDescription,
    PredictionsDescription,
    StoredLayer,
)
from regard.recorder.storage.joined_layer import join_captures
from regard.recorder.storage.picture_files import read_pictures
from regard.recorder.tokens_of_maps.predictions import Predictions
from regard.support.files import (
    MAX_CONFIG_BYTES,
    CaptureFileError,
    check_regular_file,
    get_field,
    is_present,
    naming_errors,
    parse_object,
    read_text,
    shorten,
)
from regard.support.plain_data import read_record
from regard.support.safetensor_files import read_safetensors

MAX_EMPTY = 1 << 24
"""The largest size of a layer without elements: no data stands for it."""


def load(path: str | os.PathLike[str]) -> LayerMap | Capture:
    """Open what was saved: `path` is a file that `map.save(file)` wrote, or a folder of `seen.save(folder)`.

    Returns a map or a capture. The tensors of a map, and the layers of a capture, are read from disk when
    they are first used. A capture that several processes made, each of its part of the model, is one capture.
    """
    path = Path(path)
    if path.is_dir():
        return open_shards(path) if is_present(path / SHARDS) else open_folder(path)
    if not is_present(path):
        raise CaptureFileError(
            "path: expected a folder that seen.save(folder) wrote or a file that map.save(file) wrote, "
            f"got {path}, which does not exist"
        )
    metadata, tensors = read_safetensors(path, map_loader.FORMATS, CaptureFileError)
    return map_loader.decode(path, metadata, tensors)


def open_shards(path: Path) -> Capture:
    """Open the capture that several processes have written to a folder, each to a folder of its own in it."""
    index = path / SHARDS
    text = read_text(index, CaptureFileError, "the description of the shards of a capture", MAX_CONFIG_BYTES)
    with naming_errors(index, CaptureFileError, " is damaged"):
        described = parse_object(text)
        if (found := described.get("format")) != SHARDS_FORMAT:
            raise ValueError(f"expected format {SHARDS_FORMAT!r}, got {shorten(found)}")
        run, of = get_field(described, "run", str), get_field(described, "of", int)
        # Bounded before it is checked, since the number comes from a file.
        shards = [ShardId(run, rank, of).check() for rank in range(min(max(of, 1), MAX_RANKS))]
    captures = []
    for shard in shards:
        folder = path / shard.folder
        # Nothing outside of the folder is opened, whatever it holds.
        if folder.is_symlink() or not folder.is_dir():
            raise CaptureFileError(f"{path} is damaged: expected a folder {shard.folder}, got none")
        captures.append(open_folder(folder))
        if captures[-1].shard != shard:
            raise CaptureFileError(
                f"{folder} is damaged: expected the shard of rank {shard.rank}, got {captures[-1].shard}"
            )
    with naming_errors(path, CaptureFileError, " cannot be joined"):
        return join_captures(captures)


def open_folder(path: Path) -> Capture:
    """Open the capture that a folder holds; only `capture.json` is read."""
    index = path / INDEX
    if not is_present(index):
        unfinished = any(
            LAYER_FILE.fullmatch(file.name) or SHARD_FOLDER.fullmatch(file.name) for file in path.iterdir()
        )
        raise CaptureFileError(
            f"path: expected a folder that seen.save(folder) wrote, got {path}, which holds no {INDEX}"
            + (": its writing was cut short" if unfinished else "")
        )
    text = read_text(index, CaptureFileError, "the description of a capture")
    with naming_errors(index, CaptureFileError, " is damaged"):
        described = parse_object(text)
        if (found := described.get("format")) != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {shorten(found)}")
        return _from_json(described, path)


def _from_json(described: dict[str, Any], path: Path) -> Capture:
    """Rebuild a capture from what `to_json` wrote; a ValueError names the field that is wrong."""
    plain: CaptureDescription = read_record(CaptureDescription, described)
    shard = None if plain.shard is None else plain.shard.check()
    layers = [_layer(layer, path, shard) for layer in plain.layers]
    keys = [layer.key for layer in layers]
    if not (keys or shard) or len(set(keys)) != len(keys):
        raise ValueError(f"layers: expected at least one and each once, got {shorten(keys)}")
    ids = _table("ids", plain.ids, torch.long)
    read: dict[str, Any] = {
        "layers": layers,
        "ids": ids,
        "target_ids": _table("target_ids", plain.target_ids, torch.long),
        "attention_mask": _table("attention_mask", plain.attention_mask, torch.bool),
        # Without a fingerprint no layer is certified.
        "fingerprint": plain.fingerprint or "none",
        "predictions": None if plain.predictions is None else _predictions(plain.predictions, ids),
        "pictures": None if plain.pictures is None else read_pictures(plain.pictures, path, keys),
    }
    for table, texts in (("ids", "tokens"), ("target_ids", "target_tokens")):
        rows, tokens = read[table], getattr(plain, texts)
        if None not in (rows, tokens) and [len(row) for row in tokens] != [rows.shape[1]] * len(rows):
            raise ValueError(f"{texts}: expected a text for each of the ids {tuple(rows.shape)}, got others")
    return Capture(**(vars(plain) | read))


def _check_placement(placement: Placement, shape: Sequence[int], heads: Sequence[int]) -> None:
    """Raise a ValueError unless a layer of this shape can be there in the layer of the model."""
    total, kv_heads, *runs = placement
    if not all(0 <= head < total for head in heads) or len(set(heads)) != len(heads):
        raise ValueError(f"heads: expected numbers below {total}, each once, got {shorten(heads)}")
    if not all(0 <= head < total for head in kv_heads) or (kv_heads and len(heads) % len(kv_heads)):
        raise ValueError(
            f"kv_heads: expected as many as divide the {len(heads)} heads, got {shorten(kv_heads)}"
        )
    for own_runs, size in zip(runs, shape[2:], strict=True):
        bounds = [bound for run in own_runs or () for bound in run]
        length = sum(stop - first for first, stop in own_runs or ((0, size),))
        is_increasing = bounds == sorted(bounds) and all(first < stop for first, stop in own_runs or ())
        if min(bounds, default=0) < 0 or not is_increasing or length != size:
            raise ValueError(
                f"placement: expected increasing runs of {size} rows or keys, got {shorten(own_runs)}"
            )


def _layer(described: LayerDescription, path: Path, shard: ShardId | None) -> StoredLayer:
    _, _, _, shape, heads, file, checksum, _, placement = described
    # A name, never a path: nothing outside the folder is opened, whatever capture.json says.
    if not LAYER_FILE.fullmatch(file) or file.startswith(".") or os.path.islink(path / file):
        raise ValueError(f"file: expected the name of a layer's file in the folder, got {shorten(file)}")
    if not os.path.exists(path / file):  # unlike Path.exists, False for any name that cannot be
        raise ValueError(f"file: {file} does not exist")
    size = check_regular_file(path / file, CaptureFileError, f"the file of a layer that {INDEX} names")
    if min(shape) < 0 or len(heads) != shape[1]:
        raise ValueError(
            "shape: expected (B, H, T, S) and a number for each head, "
            f"got {shorten(shape)} and {shorten(heads)}"
        )
    _check_size(shape, file, size)
    if not 0 <= checksum < 1 << 32:
        raise ValueError(f"checksum: expected a number from 0 to {(1 << 32) - 1}, got {checksum}")
    if placement is not None:
        _check_placement(placement, shape, heads)
    return StoredLayer(described, path, shard)


def _check_size(shape: Sequence[int], file: str, size: int) -> None:
    """Raise a ValueError if a layer of this shape does not fit into a file of so many bytes.

    The file holds at least a byte for every query of each head, and for every key.
    """
    B, H, T, S = shape
    least, most = (max(shape), MAX_EMPTY) if 0 in shape else (max(B * H * T, B * S), size)
    if least > most:
        raise ValueError(f"shape: expected one that fits into the {size:,} bytes of {file}, got {shape}")


def _table(name: str, rows: list[list[int]] | None, dtype: torch.dtype) -> Tensor | None:
    """Rows of one length as a tensor (B, T); None for null."""
    if rows is None:
        return None
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name}: expected rows of one length, got {shorten([len(row) for row in rows])}")
    # Without rows the length of a row cannot be inferred.
    return torch.tensor(rows, dtype=torch.long, device="cpu").view(len(rows), -1 if rows else 0).to(dtype)


def _predictions(described: PredictionsDescription, ids: Tensor | None) -> Predictions:
    """The predictions for the tokens `ids` from their flat lists."""
    if ids is None or not ids.numel():
        raise ValueError("predictions: expected the ids of the tokens beside them, got none")
    B, T = ids.shape
    k = len(described.likeliest) // (B * T)
    shapes = {"likeliest": (B, T, k), "probabilities": (B, T, k), "losses": (B, T - 1), "ranks": (B, T - 1)}
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        numbers = getattr(described, name)
        if len(numbers) != math.prod(shape) or not k:
            raise ValueError(
                f"predictions: {name}: expected numbers for {B} × {T} tokens, got {len(numbers)}"
            )
        dtype = torch.long if name in ("likeliest", "ranks") else torch.float32
        numbers = [torch.nan if x is None else x for x in numbers]  # a loss that is not known
        tensors[name] = torch.tensor(numbers, dtype=dtype, device="cpu").view(shape)
    return Predictions(**tensors, words=described.words)
