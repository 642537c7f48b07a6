"""Opens what was saved: a capture from a folder, a map from a file.

Only `capture.json` is read at first; a layer's file is opened when the layer is first used. Everything in
`capture.json` is checked, since anyone may have written it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.maps import loader as map_loader
from regard.recorder.layer import LayerMap
from regard.recorder.placement import MAX_RANKS, SHARD_FOLDER, Placement, Runs, ShardId
from regard.recorder.result import Capture
from regard.recorder.storage.capture_folder import (
    FORMAT,
    INDEX,
    LAYER_FILE,
    SHARDS,
    SHARDS_FORMAT,
    StoredLayer,
)
from regard.recorder.storage.evidence_data import read_evidence
from regard.recorder.storage.joined_layer import join_captures
from regard.recorder.storage.picture_files import read_pictures
from regard.recorder.tokens_of_maps.predictions import Predictions
from regard.support.files import (
    MAX_CONFIG_BYTES,
    CaptureFileError,
    check_regular_file,
    check_type,
    get_field,
    is_present,
    naming_errors,
    parse_object,
    read_text,
    shorten,
)
from regard.support.safetensor_files import read_safetensors

T = TypeVar("T")
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
    """Rebuild a capture from what `folder.to_json` wrote; a ValueError names the field that is wrong."""
    shard = _shard(_optional(described, "shard", dict))
    seen = Capture(
        layers=[
            _layer(check_type("layers", layer, dict), path, shard)
            for layer in get_field(described, "layers", list)
        ],
        shard=shard,
        model=get_field(described, "model", str),
        ids=_table(described, "ids", torch.long),
        tokens=_lists(described, "tokens", str),
        target_ids=_table(described, "target_ids", torch.long),
        target_tokens=_lists(described, "target_tokens", str),
        attention_mask=_table(described, "attention_mask", torch.bool),
        boundary=_optional(described, "boundary", int),
        missing=_modules(described, "missing"),
        other_mixers=_modules(described, "other_mixers"),
        is_whole=check_type("is_whole", described.get("is_whole", True), bool),
        edits=tuple(
            check_type("edits", text, str) for text in check_type("edits", described.get("edits", []), list)
        ),
        # Without a fingerprint no layer is certified.
        fingerprint=_optional(described, "fingerprint", str) or "none",
    )
    keys = [layer.key for layer in seen.layers]
    if not (keys or shard) or len(set(keys)) != len(keys):
        raise ValueError(f"layers: expected at least one and each once, got {shorten(keys)}")
    for name, ids, tokens in (
        ("tokens", seen.ids, seen.tokens),
        ("target_tokens", seen.target_ids, seen.target_tokens),
    ):
        if (
            ids is not None
            and tokens is not None
            and [len(row) for row in tokens] != [ids.shape[1]] * len(ids)
        ):
            raise ValueError(f"{name}: expected a text for each of the ids {tuple(ids.shape)}, got others")
    seen.predictions = _predictions(_optional(described, "predictions", dict), seen.ids)
    if (pictures := _optional(described, "pictures", dict)) is not None:
        seen.pictures = read_pictures(pictures, path, [layer.key for layer in seen.layers])
    return seen


def _modules(described: dict[str, Any], field: str) -> dict[str, str]:
    """Return the classes of modules by their names; none if the field is absent."""
    modules = check_type(field, described.get(field, {}), dict)
    return {name: check_type(field, kind, str) for name, kind in modules.items()}


def _optional(described: dict[str, Any], name: str, kind: type[T]) -> T | None:
    """The value of a field that may be null or missing."""
    return None if described.get(name) is None else get_field(described, name, kind)


def _shard(described: dict[str, Any] | None) -> ShardId | None:
    """The shard that a folder holds; None if it holds a whole capture."""
    if described is None:
        return None
    rank, of = get_field(described, "rank", int), get_field(described, "of", int)
    return ShardId(get_field(described, "run", str), rank, of).check()


def _placement(described: dict[str, Any] | None, heads: list[int]) -> Placement | None:
    """Where a layer of a shard is in the layer of the model; None if it is the whole layer."""
    if described is None:
        return None
    total = get_field(described, "total_heads", int)
    if not all(0 <= head < total for head in heads) or len(set(heads)) != len(heads):
        raise ValueError(f"heads: expected numbers below {total}, each once, got {shorten(heads)}")
    kv_heads = [check_type("kv_heads", n, int) for n in get_field(described, "kv_heads", list)]
    if not all(0 <= head < total for head in kv_heads) or (kv_heads and len(heads) % len(kv_heads)):
        raise ValueError(
            f"kv_heads: expected as many as divide the {len(heads)} heads, got {shorten(kv_heads)}"
        )
    rows, keys = (_runs(described, name) for name in ("rows", "keys"))
    return Placement(total, tuple(kv_heads), rows, keys)


def _runs(described: dict[str, Any], name: str) -> Runs | None:
    """Runs of positions, in increasing order, none of them empty; None for null."""
    if described.get(name) is None:
        return None
    runs, end = [], 0
    for run in get_field(described, name, list):
        bounds = [check_type(name, n, int) for n in check_type(name, run, list)]
        if len(bounds) != 2 or not end <= bounds[0] < bounds[1]:
            raise ValueError(f"{name}: expected increasing runs [first, stop], got {shorten(run)}")
        runs.append((bounds[0], bounds[1]))
        end = bounds[1]
    return tuple(runs)


def _layer(described: dict[str, Any], path: Path, shard: ShardId | None) -> StoredLayer:
    """A layer from its description."""
    file = get_field(described, "file", str)
    # A name, never a path: nothing outside the folder is opened, whatever capture.json says.
    if not LAYER_FILE.fullmatch(file) or file.startswith(".") or os.path.islink(path / file):
        raise ValueError(f"file: expected the name of a layer's file in the folder, got {shorten(file)}")
    if not os.path.exists(path / file):  # unlike Path.exists, False for any name that cannot be
        raise ValueError(f"file: {file} does not exist")
    size = check_regular_file(path / file, CaptureFileError, f"the file of a layer that {INDEX} names")
    shape, heads = (
        [check_type(name, n, int) for n in get_field(described, name, list)] for name in ("shape", "heads")
    )
    if len(shape) != 4 or min(shape) < 0 or len(heads) != shape[1]:
        raise ValueError(
            "shape: expected (B, H, T, S) and a number for each head, "
            f"got {shorten(shape)} and {shorten(heads)}"
        )
    _check_size(shape, file, size)
    checksum = get_field(described, "checksum", int)
    if not 0 <= checksum < 1 << 32:
        raise ValueError(f"checksum: expected a number from 0 to {(1 << 32) - 1}, got {checksum}")
    number, evidence = get_field(described, "number", int), get_field(described, "evidence", dict)
    name, stack = get_field(described, "name", str), get_field(described, "stack", str)
    placement = _placement(_optional(described, "placement", dict), heads)
    for run, size in zip(placement[2:] if placement else (), shape[2:], strict=False):
        if run is not None and sum(stop - first for first, stop in run) != size:
            raise ValueError(f"placement: expected positions for {size} rows or keys, got {shorten(run)}")
    return StoredLayer(
        number,
        name,
        stack,
        shape,
        read_evidence(evidence),
        heads,
        path / file,
        checksum,
        placement=placement,
        shard=shard,
    )


def _check_size(shape: list[int], file: str, size: int) -> None:
    """Raise a ValueError if a layer of this shape does not fit into a file of so many bytes.

    The file holds at least a byte for every query of each head, and for every key.
    """
    B, H, T, S = shape
    least, most = (max(shape), MAX_EMPTY) if 0 in shape else (max(B * H * T, B * S), size)
    if least > most:
        raise ValueError(f"shape: expected one that fits into the {size:,} bytes of {file}, got {shape}")


def _table(described: dict[str, Any], name: str, dtype: torch.dtype) -> Tensor | None:
    """Lists of lists of integers, all of one length, as a tensor (B, T); None for null."""
    if (rows := _lists(described, name, int)) is None:
        return None
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name}: expected rows of one length, got {shorten([len(row) for row in rows])}")
    # Without rows the length of a row cannot be inferred.
    return torch.tensor(rows, dtype=torch.long, device="cpu").view(len(rows), -1 if rows else 0).to(dtype)


def _predictions(described: dict[str, Any] | None, ids: Tensor | None) -> Predictions | None:
    """The predictions for the tokens `ids` from their flat lists; None for null."""
    if described is None:
        return None
    if ids is None or not ids.numel():
        raise ValueError("predictions: expected the ids of the tokens beside them, got none")
    B, T = ids.shape
    lists = {
        name: get_field(described, name, list) for name in ("likeliest", "probabilities", "losses", "ranks")
    }
    k, rest = divmod(len(lists["likeliest"]), B * T)
    sizes = {"likeliest": B * T * k, "probabilities": B * T * k, "losses": B * (T - 1), "ranks": B * (T - 1)}
    for name, numbers in lists.items():
        if len(numbers) != sizes[name] or rest or not k:
            raise ValueError(
                f"predictions: {name}: expected numbers for {B} × {T} tokens, got {len(numbers)}"
            )
        for number in numbers:
            if number is not None or name != "losses":
                check_type(name, number, int if name in ("likeliest", "ranks") else float)
    losses = [torch.nan if loss is None else loss for loss in lists["losses"]]
    return Predictions(
        torch.tensor(lists["likeliest"], dtype=torch.long, device="cpu").view(B, T, k),
        torch.tensor(lists["probabilities"], dtype=torch.float32, device="cpu").view(B, T, k),
        torch.tensor(losses, dtype=torch.float32, device="cpu").view(B, T - 1),
        torch.tensor(lists["ranks"], dtype=torch.long, device="cpu").view(B, T - 1),
        {int(n): check_type("words", w, str) for n, w in get_field(described, "words", dict).items()},
    )


def _lists(described: dict[str, Any], name: str, kind: type[T]) -> list[list[T]] | None:
    """Lists of lists of numbers or of text; None for null."""
    if described.get(name) is None:
        return None
    rows = [check_type(name, row, list) for row in get_field(described, name, list)]
    return [[check_type(name, x, kind) for x in row] for row in rows]
