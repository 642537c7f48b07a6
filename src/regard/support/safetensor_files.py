"""Reads and writes safetensors files whose header names the format of their contents.

This is the only file that opens safetensors files. It knows nothing about what the tensors mean: each caller
passes the formats that it understands and its own type of error, and checks names and shapes itself.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.support.files import (
    Kind,
    atomic_write,
    check_regular_file,
    check_target,
    converting_errors,
    naming_errors,
    open_file,
    parse_object,
    shorten,
    write_error,
)

CONTENTS = "a complete safetensors file"
MAX_DIMENSIONS = 8
MAX_EMPTY = 1 << 24
"""The largest product of the other sizes of a tensor without elements: no data stands for them."""


class SafetensorContent(NamedTuple):
    """The metadata and the tensors of a safetensors file."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]


class SafetensorFile:
    """An open safetensors file, of which only the header was read. `kind` is raised for every problem.

    `shapes` and `metadata` are those of the header; `read(name)` reads a tensor.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        check_regular_file(path, kind, "a safetensors file")
        self.path, self.kind = path, kind
        # The library checks the lengths and offsets, and that they cover the file.
        with converting_errors(path, kind, CONTENTS):
            handle: Any = safe_open(path, framework="pt")
            self.metadata: dict[str, str] = dict(handle.metadata() or {})
        self._handle = handle
        with naming_errors(path, kind):
            self.shapes = _read_shapes(path, kind)

    def read(self, name: str) -> Tensor:
        """A tensor, memory-mapped: its pages are read from disk when they are first used."""
        with converting_errors(self.path, self.kind, CONTENTS):
            tensor: Tensor = self._handle.get_tensor(name)
        return tensor


def _read_shapes(path: Path, kind: Kind) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, from the header of a file whose lengths were checked."""
    with open_file(path, kind, CONTENTS) as file:
        # The library does not hand out shapes without opening each slice, and it accepts any number of
        # dimensions.
        (length,) = struct.unpack("<Q", file.read(8))
        header = parse_object(file.read(length).decode("utf-8"))
    header.pop("__metadata__", None)
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    for name, shape in shapes.items():
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(
                f"{shorten(name)}: expected at most {MAX_DIMENSIONS} dimensions, got {len(shape)}"
            )
        if 0 in shape and math.prod(size for size in shape if size) > MAX_EMPTY:
            raise ValueError(
                f"{shorten(name)}: expected a tensor without elements to have other sizes of at most "
                f"{MAX_EMPTY:,} in all, got {shape}"
            )
    return shapes


def read_safetensors(path: str | os.PathLike[str], formats: Collection[str], kind: Kind) -> SafetensorContent:
    """Read a safetensors file whose metadata names one of `formats` under "format".

    The tensors are memory-mapped. Every problem with the file raises a `kind` that names it.
    """
    file = SafetensorFile(Path(path), kind)
    # PyTorch's own files have the format "pt", so that a file of weights is told from ours by this field.
    if (found := file.metadata.get("format")) not in formats:
        expected = " or ".join(map(repr, formats))
        raise kind(f"{path}: expected format {expected}, got {shorten(found)}")
    return SafetensorContent(file.metadata, {name: file.read(name) for name in file.shapes})


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and metadata to a file, atomically: an interrupted write leaves the old file as it was.

    `metadata` must name the format under "format". Tensors may be on any device and may share memory.
    """
    if "format" not in metadata:
        raise ValueError(f"metadata: expected a format, got only {sorted(metadata)}")
    path = Path(path)
    check_target("path", path)
    # save_file refuses tensors that are not contiguous.
    separate = _without_shared_memory({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    with atomic_write(path) as temporary:
        try:
            save_file(separate, temporary, metadata=dict(metadata))
        except SafetensorError as error:  # on a full disk it names neither the file nor an errno
            code = re.search(r"os error (\d+)", str(error))
            raise write_error("path", path, OSError(int(code[1]) if code else 0, str(error))) from None


def _without_shared_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, which safetensors refuses: q and k may be equal."""
    addresses: set[int] = set()
    for name, x in tensors.items():
        # The storage's address, since two views of one buffer have different data_ptr of their own.
        address = x.untyped_storage().data_ptr()
        tensors[name] = x.clone() if address in addresses else x
        addresses.add(address)
    return tensors
