"""Maps on disk: a safetensors file with q, k and lse, and the mask and the options in its metadata.

Opening reads the header only; the tensors are mapped into memory and read on use. Writing is atomic, so that
an interrupted save leaves the old file as it was.
"""

from __future__ import annotations

import dataclasses
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
from regard.attention.masks import base, named
from regard.attention.masks.base import Mask
from regard.maps.data import MapData
from regard.maps.index import Axes

FORMAT = "regard.AttentionMap 1"
KINDS: dict[str, type[Mask]] = {
    kind.__name__: kind
    for kind in (
        base.And,
        base.Or,
        base.Not,
        base.Rows,
        base.Full,
        named.Causal,
        named.Window,
        named.Prefix,
        named.Chunks,
        named.Padding,
        named.Documents,
        named.TensorMask,
        named.Alibi,
        named.Relative,
    )
}


def save(m: MapData, path: str | os.PathLike[str], extra: Mapping[str, Tensor] | None = None) -> None:
    """Write a map to a file, atomically, with `extra` tensors beside its own."""
    tensors = {"q": m.q, "k": m.k, "lse": m.lse}
    if m.sinks is not None:
        tensors["sinks"] = m.sinks
    options = {
        "mask": _encode_mask(m.mask, tensors),
        "scale": m.scale,
        "softcap": m.softcap,
        "axes": list(m.axes),
    }
    write(path, {**tensors, **(extra or {})}, {"format": FORMAT, "map": json.dumps(options)})


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, atomically."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"path: expected a file in a folder that exists, got {path}: make {path.parent}")
    on_cpu = _unshare({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    with atomic_write(path) as file:
        save_file(on_cpu, file, metadata=metadata)


def _unshare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one: q and k may be one tensor."""
    addresses: set[int] = set()
    for name, x in tensors.items():
        address = x.untyped_storage().data_ptr()
        tensors[name] = x.clone() if address in addresses else x
        addresses.add(address)
    return tensors


def load(path: str | os.PathLike[str]) -> MapData:
    """Open a map that `save` wrote. Its tensors are mapped into memory and read on use."""
    metadata, tensors = read(path)
    return decode(path, metadata, tensors)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file; the tensors are mapped into memory."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: expected the file of a saved map, got {path}, which is not there")
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def decode(path: str | os.PathLike[str], metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> MapData:
    """Make a map of the metadata and the tensors of a file; ValueError says what is wrong with it."""
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} holds no map: expected format {FORMAT!r}, got {metadata.get('format')!r}")
    try:
        return _decode(json.loads(metadata["map"]), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _decode(options: Any, tensors: dict[str, Tensor]) -> MapData:
    """The same for options that were parsed, with any of many exceptions."""
    q, k, lse, sinks = tensors["q"], tensors["k"], tensors["lse"], tensors.get("sinks")
    if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != k.shape[-1] or lse.shape != q.shape[:-1]:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, lse {tuple(lse.shape)} do not fit together"
        )
    mask, scale, softcap = _decode_mask(options["mask"], tensors), float(options["scale"]), options["softcap"]
    check_inputs(q, k, mask=mask, scale=scale, softcap=softcap, sinks=sinks)
    if lse.dtype != working_dtype(q.dtype):
        raise ValueError(f"lse: expected {working_dtype(q.dtype)}, got {lse.dtype}")
    if 0 not in q.shape[:3] and k.shape[2]:
        mask.tile(range(1), range(1), (*q.shape[:3], k.shape[2]))  # a mask with invalid settings raises here
    batch, heads = (bool(shown) for shown in options["axes"])
    axes = Axes(batch, heads)
    if any(size != 1 for size, shown in zip(q.shape[:2], axes, strict=True) if not shown):
        raise ValueError(f"axes: {tuple(axes)} do not fit q {tuple(q.shape)}")
    return MapData(q=q, k=k, lse=lse, mask=mask, scale=scale, softcap=softcap, sinks=sinks, axes=axes)


def _encode_mask(mask: Mask, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A mask as plain data for JSON; its tensors are added to `tensors`."""
    if type(mask).__name__ not in KINDS:
        raise ValueError(
            f"mask: {mask} is a function, which a file cannot hold: "
            "pass it as regard.tensor_mask(tensor), or combine the named rules"
        )
    encoded: dict[str, Any] = {"kind": type(mask).__name__}
    for field in dataclasses.fields(mask):  # type: ignore[arg-type]
        value = getattr(mask, field.name)
        if isinstance(value, Mask):
            value = _encode_mask(value, tensors)
        elif isinstance(value, Tensor):
            name = f"mask.{len(tensors)}"
            tensors[name] = value
            value = {"tensor": name}
        encoded[field.name] = value
    return encoded


def _decode_mask(encoded: dict[str, Any], tensors: dict[str, Tensor]) -> Mask:
    """The mask that `_encode_mask` wrote, of one of the classes in `KINDS`."""
    kind = KINDS[encoded["kind"]]
    values: dict[str, Any] = {}
    for name, value in encoded.items():
        if name == "kind":
            continue
        if isinstance(value, dict):
            value = _decode_mask(value, tensors) if "kind" in value else tensors[value["tensor"]]
        values[name] = value
    mask = kind(**values)
    # `full` and `causal` are recognised by identity.
    return next((constant for constant in (base.full, named.causal) if constant == mask), mask)
