"""A map on disk: one safetensors file with q, k and lse, and its mask and options in the header.

Opening reads the header only; the tensors are mapped into memory and come in as they are looked at.
Writing goes to a neighbouring file first, so that an interrupted save leaves the old one as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.atomic import atomic_write
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.description import describe_mask, rebuild_mask
from regard.maps.index import Axes
from regard.maps.map import AttentionMap

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
    write(path, {**tensors, **(beside or {})}, {"format": FORMAT, "map": json.dumps(described)})


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, atomically."""
    path = Path(path)
    plain = _apart({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    if not path.parent.is_dir():
        raise ValueError(f"path: expected a file in a folder that exists, got {path}: make {path.parent}")
    with atomic_write(path) as file:
        save_file(plain, file, metadata=metadata)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none of which shares memory with another: q and k may be one tensor."""
    seen: set[int] = set()
    for name, x in tensors.items():
        place = x.untyped_storage().data_ptr()
        tensors[name] = x.clone() if place in seen else x
        seen.add(place)
    return tensors


def load(path: str | os.PathLike[str]) -> AttentionMap:
    """Open a map that was saved with `map.save(path)`. Its tensors are read as they are looked at."""
    metadata, tensors = read(path)
    return rebuilt(path, metadata, tensors)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header and the tensors of a safetensors file; the tensors come in as they are looked at."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: expected a file that a map was saved to, got {path}, which is not there")
    try:
        with safe_open(path, framework="pt") as stored:
            return stored.metadata() or {}, {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def rebuilt(
    path: str | os.PathLike[str], metadata: Mapping[str, str], tensors: dict[str, Tensor]
) -> AttentionMap:
    """The map that a file describes; ValueError says what is wrong with it."""
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} holds no map: expected format {FORMAT!r}, got {metadata.get('format')!r}")
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
