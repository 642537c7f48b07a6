"""Reads and writes safetensors files whose header names the format of their contents.

This is the only file that opens safetensors files. It knows nothing about what the tensors mean: each caller
passes the formats that it understands and checks names and shapes itself.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.atomic import atomic_write

LONGEST_REASON = 200  # characters of a library's error message that are repeated in ours


class SafetensorContent(NamedTuple):
    """The metadata and the tensors of a safetensors file."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]


def open_safetensors(path: str | os.PathLike[str]) -> Any:
    """Open a safetensors file, whatever its format, and return the handle of `safetensors.safe_open`.

    Only the header is read. `handle.keys()` lists the tensors and `handle.get_tensor(name)` reads one of
    them. A file that is missing, damaged or cut short raises a ValueError that names it.
    """
    path = Path(path)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"path: expected a safetensors file, got {path}, which {problem}")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from None


def read_safetensors(path: str | os.PathLike[str], formats: Collection[str]) -> SafetensorContent:
    """Read a safetensors file whose metadata names one of `formats` under "format".

    The tensors are memory-mapped: their pages are read from disk when they are first used. Every problem with
    the file raises a ValueError that names it.
    """
    with open_safetensors(path) as handle:
        metadata = dict(handle.metadata() or {})
        if (found := metadata.get("format")) not in formats:
            expected = " or ".join(map(repr, formats))
            raise ValueError(f"{path}: expected format {expected}, got {_shortened(repr(found))}")
        try:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise _damaged(Path(path), error) from None
    return SafetensorContent(metadata, tensors)


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to a file, atomically: an interrupted write leaves the old file as it was.

    `metadata` must name the format under "format". Tensors may be on any device and may share memory.
    """
    if "format" not in metadata:
        raise ValueError(f"metadata: expected a format, got only {sorted(metadata)}")
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"path: expected a file in a folder that exists, got {path}: make {path.parent}")
    separate = _without_shared_memory({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    with atomic_write(path) as temporary:
        save_file(separate, temporary, metadata=dict(metadata))


def _without_shared_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, which safetensors refuses: q and k may be equal."""
    addresses: set[int] = set()
    for name, x in tensors.items():
        address = x.untyped_storage().data_ptr()
        tensors[name] = x.clone() if address in addresses else x
        addresses.add(address)
    return tensors


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is not a complete safetensors file: {_shortened(str(error))}")


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"
