"""Reads and writes one layer of a capture as a safetensors file: its map, or its summary.

A map is stored in the format of `regard.maps.storage`, with the layer's values beside it, so that such a file
also opens as a map. Tensors are memory-mapped: they are read from disk when they are first used.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.tensor_masks import TensorMask
from regard.maps import AttentionMap, LinearAttentionMap, loader, storage
from regard.recorder.layer import LayerData
from regard.recorder.summary import LayerSummary
from regard.support.files import CaptureFileError, open_file, shorten
from regard.support.safetensor_files import read_safetensors, write_safetensors

FORMAT = "regard.Summary 1"
VALUES = "values"
SHARD = "shard"
DIMENSIONS = {"mass": 4, "max": 4}  # of the fields of a summary; those of the others are (B, H, …)
PIECE_BYTES = 1 << 20  # of a file that are read at a time for its checksum
MAX_MASK_BYTES = 1 << 28  # the largest mask tensor that is written in place of a mask that is a function


def write(data: LayerData, path: Path, shard: str = "") -> None:
    """Write the tensors of a layer to a file, atomically; `shard` names the shard it belongs to, if any."""
    values = {} if data.values is None else {VALUES: data.values}
    label = {SHARD: shard} if shard else {}
    if (m := data.map) is not None:
        if isinstance(m, AttentionMap):
            m = m._with(mask=storable_mask(m.mask, m.matrix, m.device), kept=m.kept)
        storage.save(m, path, values, label)
    elif data.summary is not None:
        write_safetensors(path, {**data.summary._asdict(), **values}, {"format": FORMAT, **label})


def checksum(path: Path) -> int:
    """Compute the CRC-32 of a layer's file."""
    value = 0
    with open_file(path, CaptureFileError, "the file of a layer") as file:
        while piece := file.read(PIECE_BYTES):
            value = zlib.crc32(piece, value)
    return value


def read(path: Path, shard: str = "", is_map: bool = True) -> LayerData:
    """Read the tensors of a layer; a file that is damaged raises an error that says what is wrong.

    The file has to belong to the shard that `shard` names, as `write` was given it. If it has some of the
    rows or keys of a layer only, then `is_map` is false.
    """
    metadata, tensors = read_safetensors(path, [*loader.FORMATS, FORMAT], CaptureFileError)
    if (found := metadata.get(SHARD, "")) != shard:
        raise CaptureFileError(
            f"{path} is damaged: expected the shard {shorten(shard)}, got {shorten(found)}"
        )
    values = tensors.pop(VALUES, None)
    if metadata["format"] == FORMAT:
        return LayerData(values=values, summary=_summary(path, tensors))
    m = loader.decode(path, metadata, tensors, is_map)
    # A linear layer has values for every head, as Mamba-2 whose heads share C and B.
    expected = m.beta.shape if isinstance(m, LinearAttentionMap) else m.k.shape[:3]
    if values is not None and (values.ndim != 4 or values.shape[:3] != expected):
        shapes = f"values {tuple(values.shape)} do not fit k {tuple(m.k.shape)}"
        raise CaptureFileError(f"{path} is damaged: {shapes}")
    return LayerData(m, values)


def _summary(path: Path, tensors: dict[str, Tensor]) -> LayerSummary:
    try:
        summary = LayerSummary(**tensors)
    except TypeError as error:
        raise CaptureFileError(f"{path} is damaged: {error}") from None
    heads = summary.entropy.shape[:2]
    fields = summary._asdict()
    if any(
        x.ndim != DIMENSIONS.get(name, 3) or x.shape[:2] != heads or not x.is_floating_point()
        for name, x in fields.items()
    ):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in fields.items())
        raise CaptureFileError(f"{path} is damaged: {shapes} do not fit together")
    return summary


def storable_mask(mask: Mask, matrix: tuple[int, int, int, int], device: torch.device) -> Mask:
    """Return the mask of attention (B, H, T, S), or a tensor of it if a part of the mask is a function."""
    if mask.is_storable():
        return mask
    # One entry of the mask shows whether it varies over the batch and the heads, and so its full size.
    T, S = matrix[2:]
    entry = mask.tile(range(1), range(1), matrix, device=device)
    if (size := entry.numel() * T * S) > MAX_MASK_BYTES:
        raise ValueError(
            f"mask: {mask} is a function, which a file cannot hold, and as a tensor it could take "
            f"{size / 2**30:.1f} GiB: combine the named masks (regard.causal, regard.window(n), …) instead"
        )
    allowed = mask.tile(range(T), range(S), matrix, device=device)  # (1 or B, 1 or H, T, S)
    bias = mask.bias(range(T), range(S), matrix, device=device)
    if bias is not None:
        allowed = torch.where(allowed, bias.detach(), -torch.inf)
    return TensorMask(allowed.view((1,) * (4 - allowed.ndim) + allowed.shape))
