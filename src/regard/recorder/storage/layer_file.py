"""One layer of a capture as a file: its map in the format of `regard.maps.storage`, or its summary.

Opening maps the tensors into memory; they come in as they are looked at.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.named import TensorMask
from regard.maps import AttentionMap, storage
from regard.recorder.result import LayerData
from regard.recorder.summary import LayerSummary

FORMAT = "regard.Summary 1"
VALUES = "values"
WRITTEN_OUT = 1 << 28  # bytes that a rule may take which has to be written out entry by entry


def write(kept: LayerData, path: Path) -> None:
    """Write what is kept of a layer to a file, atomically."""
    beside = {} if kept.values is None else {VALUES: kept.values}
    if kept.map is not None:
        storage.save(with_plain_mask(kept.map), path, beside)
    elif kept.summary is not None:
        storage.write(path, {**kept.summary._asdict(), **beside}, {"format": FORMAT})


def read(path: Path) -> LayerData:
    """What a file keeps of a layer; ValueError says what is wrong with it."""
    metadata, tensors = storage.read(path)
    values = tensors.pop(VALUES, None)
    if metadata.get("format") != FORMAT:
        return LayerData(
            _fitting(path, AttentionMap.from_data(storage.decode(path, metadata, tensors)), values), values
        )
    try:
        summary = LayerSummary(**tensors)
    except TypeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    heads = summary.entropy.shape[:2]
    if any(x.ndim < 3 or x.shape[:2] != heads or not x.is_floating_point() for x in summary):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in summary._asdict().items())
        raise ValueError(f"{path} is damaged: {shapes} do not fit together")
    return LayerData(values=values, summary=summary)


def _fitting(path: Path, map: AttentionMap, values: Tensor | None) -> AttentionMap:
    if values is not None and (values.ndim != 4 or values.shape[:3] != map.k.shape[:3]):
        raise ValueError(f"{path} is damaged: values {tuple(values.shape)} do not fit k {tuple(map.k.shape)}")
    return map


def with_plain_mask(map: AttentionMap) -> AttentionMap:
    """The same map; its mask written out, entry by entry, where a rule in it is a function."""
    if _plain(map.mask):
        return map
    T, S = map.matrix[2:]
    one = map.mask.tile(
        range(1), range(1), map.matrix, device=map.device
    )  # with batch and heads, if it varies
    if (size := one.numel() * T * S) > WRITTEN_OUT:
        raise ValueError(
            f"mask: {map.mask} is a function, which a file cannot hold, and written out it could take "
            f"{size / 2**30:.1f} GiB: combine the named rules (regard.causal, regard.window(n), …) instead"
        )
    allowed = map.mask.tile(range(T), range(S), map.matrix, device=map.device)
    added = map.mask.bias(range(T), range(S), map.matrix, device=map.device)
    if added is not None:
        allowed = torch.where(allowed, added.detach(), -torch.inf)
    mask = TensorMask(allowed.view((1,) * (4 - allowed.ndim) + allowed.shape))
    return map._with(mask=mask)


def _plain(mask: Mask) -> bool:
    """Whether a file can hold the rule: one of the named ones, combined."""
    if type(mask).__name__ not in storage.KINDS:
        return False
    parts = [getattr(mask, field.name) for field in dataclasses.fields(mask)]  # type: ignore[arg-type]
    return all(_plain(part) for part in parts if isinstance(part, Mask))
