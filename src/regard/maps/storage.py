"""A map on disk: one safetensors file with q, k and lse, and its mask and options in the header.

Opening reads the header only; the tensors are mapped into memory and come in as they are looked at.
Writing goes to a neighbouring file first, so that an interrupted save leaves the old one as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.description import describe_mask, rebuild_mask
from regard.maps.index import Axes
from regard.maps.map import AttentionMap
from regard.safetensor_files import read_safetensors, write_safetensors

FORMAT = "regard.AttentionMap 1"


def save(map: AttentionMap, path: str | os.PathLike[str], beside: Mapping[str, Tensor] | None = None) -> None:
    """Write a map to a file, atomically, and other tensors beside it if there are any."""
    tensors = {"q": map.q, "k": map.k, "lse": map.lse}
    if map.sinks is not None:
        tensors["sinks"] = map.sinks
    described = {
        "mask": describe_mask(map.mask, tensors),
        "scale": map.scale,
        "softcap": map.softcap,
        "axes": list(map.axes),
    }
    metadata = {"format": FORMAT, "map": json.dumps(described)}
    write_safetensors(path, {**tensors, **(beside or {})}, metadata)


def load(path: str | os.PathLike[str]) -> AttentionMap:
    """Open a map that was saved with `map.save(path)`. Its tensors are read as they are looked at."""
    metadata, tensors = read_safetensors(path, [FORMAT])
    return rebuilt(path, metadata, tensors)


def rebuilt(
    path: str | os.PathLike[str], metadata: Mapping[str, str], tensors: dict[str, Tensor]
) -> AttentionMap:
    """The map that a file describes; ValueError says what is wrong with it."""
    try:
        return _rebuilt(json.loads(metadata["map"]), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _rebuilt(described: Any, tensors: dict[str, Tensor]) -> AttentionMap:
    q, k, lse, sinks = tensors["q"], tensors["k"], tensors["lse"], tensors.get("sinks")
    if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != k.shape[-1] or lse.shape != q.shape[:-1]:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, lse {tuple(lse.shape)} do not fit together"
        )
    mask, scale, softcap = (
        rebuild_mask(described["mask"], tensors),
        float(described["scale"]),
        described["softcap"],
    )
    check_inputs(q, k, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    if lse.dtype != working_dtype(q.dtype):
        raise ValueError(f"lse: expected {working_dtype(q.dtype)}, got {lse.dtype}")
    if 0 not in q.shape[:3] and k.shape[2]:
        mask.tile(range(1), range(1), (*q.shape[:3], k.shape[2]))  # a rule with odd settings says so here
    axes = Axes(*(bool(there) for there in described["axes"]))
    if any(size != 1 for size, there in zip(q.shape[:3], axes, strict=True) if not there):
        raise ValueError(f"axes: {tuple(axes)} do not fit q {tuple(q.shape)}")
    return AttentionMap(q, k, lse, mask, scale, softcap, sinks, axes)
