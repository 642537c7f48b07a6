"""Writes PNG files, and reads those that it wrote: 8 bits a channel, RGB, every line filtered by "Sub".

A file that anyone may have written is checked before anything is decompressed, and never gives more bytes
than its header announces. This file knows bytes and tensors.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SUB = 1  # the filter: every byte is the difference from the byte of the pixel to its left
RGB = (8, 2, 0, 0, 0)  # bits, colour type, compression, filter method, interlace
CHANNELS = 3


def encode_png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Return the PNG file of pixels (height, width, 3), red, green and blue.

    >>> encode_png(np.zeros((2, 3, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, _ = pixels.shape
    differences = np.diff(pixels, axis=1, prepend=np.zeros((height, 1, CHANNELS), np.uint8))  # wraps at 256
    lines = np.full((height, 1 + CHANNELS * width), SUB, np.uint8)
    lines[:, 1:] = differences.reshape(height, -1)
    header = struct.pack(">II5B", width, height, *RGB)
    # Level 9, since a picture is written once into a file and read often.
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def decode_png(data: bytes, max_side: int) -> Tensor:
    """Return the pixels, uint8 (height, width, 3), of a PNG file that `encode_png` wrote.

    A ValueError says what is wrong with any other: with a file that is larger than `max_side` to a side, too.
    """
    if not data.startswith(SIGNATURE):
        raise ValueError("expected a PNG file, got another kind of file")
    chunks = dict(_chunks(data[len(SIGNATURE) :]))
    header = chunks.get(b"IHDR", b"")
    if len(header) != 13 or b"IDAT" not in chunks:
        raise ValueError("expected a PNG file with one header and one block of pixels, got others")
    width, height, *kind = struct.unpack(">II5B", header)
    if tuple(kind) != RGB or not 0 < width <= max_side or not 0 < height <= max_side:
        raise ValueError(
            f"expected a PNG file in 8-bit RGB of at most {max_side} × {max_side} pixels, "
            f"got {width} × {height} of kind {kind}"
        )
    size = height * (1 + CHANNELS * width)
    try:
        # One byte more than expected tells a stream that is too long from one that fits, without inflating
        # all of it.
        raw = zlib.decompressobj().decompress(chunks[b"IDAT"], size + 1)
    except zlib.error as error:
        raise ValueError(f"expected a PNG file that can be decompressed: {error}") from None
    lines = np.frombuffer(raw, np.uint8)
    if len(lines) != size or not bool((lines.reshape(height, -1)[:, 0] == SUB).all()):
        raise ValueError(f"expected a PNG file with {size} bytes of lines filtered by Sub, got {len(lines)}")
    differences = lines.reshape(height, -1)[:, 1:].reshape(height, width, CHANNELS)
    # uint8, so that sums wrap at 256 as the differences do; cumsum's default type would not.
    return torch.from_numpy(np.cumsum(differences, axis=1, dtype=np.uint8))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while data:
        # A rest shorter than a chunk has no length to read: its own is given, which the next line refuses.
        length, name = struct.unpack(">I4s", data[:8]) if len(data) >= 12 else (len(data), b"")
        if length + 12 > len(data):
            raise ValueError("expected a complete PNG file, got one that was cut short")
        content = data[8 : 8 + length]
        if data[8 + length : 12 + length] != struct.pack(">I", zlib.crc32(name + content)):
            raise ValueError("expected a PNG file with the right checksums, got a damaged one")
        yield name, content
        data = data[12 + length :]
