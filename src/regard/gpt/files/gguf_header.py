"""Reads the header of a GGUF file: its fields, and where each tensor lies in it.

Anyone may have written the file. Every length and count is compared with the bytes that are left before
anything is made of it, and no two tensors may share bytes, so that reading costs no more than the file's
size. This file knows the format; what the fields mean is known to `gguf`.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.support.files import ModelFileError, open_file, shorten

# Version 1 had 32-bit lengths; the package gguf reads the same two versions.
MAGIC, VERSIONS = b"GGUF", (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4  # of a tensor, as in llama.cpp
MAX_DEPTH = 4  # of arrays in arrays
STRING, ARRAY = 8, 9
NUMBERS = {  # the struct format of each type of number
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
LEAST_BYTES = {kind: struct.calcsize(code) for kind, code in NUMBERS.items()} | {STRING: 8, ARRAY: 12}
"""The fewest bytes that a value of each type takes."""
LEAST_FIELD, LEAST_TENSOR = 13, 32  # the fewest bytes of a field, and of the entry of a tensor


class GGUFTensor(NamedTuple):
    """A tensor of a file; `shape` is in the order of PyTorch, rows first."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int
    """The first of its bytes in the file."""
    size: int
    """The number of its bytes."""


class GGUFHeader(NamedTuple):
    """The fields of a file by name, and its tensors."""

    fields: dict[str, Any]
    tensors: list[GGUFTensor]


def read_header(path: Path, block_sizes: Mapping[int, tuple[int, int]]) -> GGUFHeader:
    """Read the header of a file; `block_sizes` has the elements and bytes of a block of each tensor type.

    A `ModelFileError` says where it is not a complete GGUF file.
    """
    with open_file(path, ModelFileError, "a GGUF file") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(data).header(block_sizes)
        except (ValueError, OSError) as error:  # an empty file cannot be mapped
            raise ModelFileError(f"{path} is not a complete GGUF file: {error}") from None


class _Cursor:
    """A position in the bytes of a file, from which values are read one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def header(self, block_sizes: Mapping[int, tuple[int, int]]) -> GGUFHeader:
        """The whole header, from the first byte."""
        if (magic := self.take(4, "magic")) != MAGIC:
            raise ValueError(f"magic: expected {MAGIC!r}, got {magic!r}")
        if (version := self.number("I", "version")) not in VERSIONS:
            # A version that is huge is a small one with its bytes reversed.
            hint = ": is the file big-endian?" if version > 0xFFFF else ""
            raise ValueError(f"version: expected 2 or 3, got {version}{hint}")
        tensor_count = self.count("tensor_count", LEAST_TENSOR)
        field_count = self.count("metadata_kv_count", LEAST_FIELD)
        fields: dict[str, Any] = {}
        for number in range(field_count):
            name = self.string(f"name of field {number}")
            # The last of two equal names would win, and another reader may take the first.
            if name in fields:
                raise ValueError(f"{shorten(name)}: expected each field once, got it twice")
            fields[name] = self.value(self.number("I", f"type of {shorten(name)}"), shorten(name))
        entries = [self.tensor(number) for number in range(tensor_count)]
        return GGUFHeader(fields, self.place(entries, _alignment(fields), block_sizes))

    def take(self, size: int, name: str) -> bytes:
        """The next `size` bytes, which are those of `name`."""
        if size > (left := len(self.data) - self.position):
            raise ValueError(
                f"{name}: expected {size:,} bytes from byte {self.position:,} on, but the file ends after "
                f"{left:,}"
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, code: str, name: str) -> Any:
        """A number with this code of `struct`."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), name))[0]

    def count(self, name: str, least: int) -> int:
        """The number of items that follow, each of which takes at least `least` bytes."""
        count: int = self.number("Q", name)
        if count * least > (left := len(self.data) - self.position):
            raise ValueError(
                f"{name}: expected at most {left // least:,}, since {left:,} bytes are left, got {count:,}"
            )
        return count

    def string(self, name: str) -> str:
        """A text with its length before it."""
        data = self.take(self.count(f"length of {name}", 1), name)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}: expected text in UTF-8, got {shorten(data)}") from None

    def value(self, kind: int, name: str, depth: int = 0) -> Any:
        """A number, a text, or a list of them."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind], name)
        if kind == STRING:
            return self.string(name)
        if kind != ARRAY:
            raise ValueError(f"{name}: expected a type from 0 to 12, got {kind}")
        if depth == MAX_DEPTH:
            raise ValueError(f"{name}: expected arrays at most {MAX_DEPTH} deep, got deeper ones")
        kind = self.number("I", f"type of {name}")
        if kind not in LEAST_BYTES:
            raise ValueError(f"{name}: expected an array of a type from 0 to 12, got {kind}")
        count = self.count(f"length of {name}", LEAST_BYTES[kind])
        if kind in NUMBERS:
            data = self.take(count * LEAST_BYTES[kind], name)
            # One call for all numbers: a vocabulary has tens of thousands of scores and types.
            return list(struct.unpack(f"<{count}{NUMBERS[kind]}", data))
        return [self.value(kind, name, depth + 1) for _ in range(count)]

    def tensor(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        """The name, shape, type and offset of a tensor."""
        name = self.string(f"name of tensor {number}")
        shown = shorten(name)
        dimensions = self.number("I", f"dimensions of {shown}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"{shown}: expected from 1 to {MAX_DIMENSIONS} dimensions, got {dimensions}")
        sizes = [self.number("Q", f"shape of {shown}") for _ in range(dimensions)]
        kind, offset = self.number("I", f"type of {shown}"), self.number("Q", f"offset of {shown}")
        # ggml lists the fastest axis first.
        return name, tuple(reversed(sizes)), kind, offset

    def place(
        self,
        entries: list[tuple[str, tuple[int, ...], int, int]],
        alignment: int,
        block_sizes: Mapping[int, tuple[int, int]],
    ) -> list[GGUFTensor]:
        """The tensors after the header, each within the file and apart from the others."""
        first = -(-self.position // alignment) * alignment
        tensors = []
        for name, shape, kind, offset in entries:
            elements, size = block_sizes.get(kind, (0, 0))
            blocks, rest = divmod(shape[-1], elements) if elements else (0, 0)
            nbytes, start = math.prod(shape[:-1]) * blocks * size, first + offset
            # No bytes: a size of 0, or a type that is not known.
            if not nbytes or rest or offset % alignment or start + nbytes > len(self.data):
                raise ValueError(
                    f"{shorten(name)}: expected a tensor of a type of GGUF, with sizes of at least 1, rows "
                    f"of whole blocks, at a multiple of {alignment} bytes within the {len(self.data):,} of "
                    f"the file, got {shape} of type {kind}, {offset:,} after the header"
                )
            tensors.append(GGUFTensor(name, shape, kind, start, nbytes))
        _check_apart(tensors)
        return tensors


def _alignment(fields: Mapping[str, Any]) -> int:
    """The number of bytes of which the place of every tensor is a multiple."""
    alignment: Any = fields.get("general.alignment", DEFAULT_ALIGNMENT)
    # The specification of GGUF says so.
    if type(alignment) is not int or alignment < 1 or alignment % 8:
        raise ValueError(f"general.alignment: expected a multiple of 8, got {shorten(alignment)}")
    return alignment


def _check_apart(tensors: list[GGUFTensor]) -> None:
    """Raise a ValueError if two tensors have the same name or share bytes."""
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError("tensors: expected each name once, got one twice")
    for one, next_one in pairwise(sorted(tensors, key=lambda tensor: tensor.start)):
        if one.start + one.size > next_one.start:
            raise ValueError(
                f"{shorten(next_one.name)}: expected bytes of its own, got some of {shorten(one.name)}"
            )


def map_bytes(path: Path, tensor: GGUFTensor) -> NDArray[np.uint8]:
    """The bytes of a tensor, mapped into memory and read on use; one row for each of its rows."""
    shape = (*tensor.shape[:-1], tensor.size // math.prod(tensor.shape[:-1]))
    # memmap, so that a model of several GB is read tensor by tensor.
    return np.memmap(path, np.uint8, "r", offset=tensor.start, shape=shape)
