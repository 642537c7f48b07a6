"""Arrays as text in an HTML file: byte planes, deflated, in base64. `packed.js` reads them.

A block is a list of arrays, one after another, each split into byte planes (all first bytes, then all second
ones) and deflated. This file knows bytes; `pack` and `model_block` know what they stand for.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Array(NamedTuple):
    """A named array of a block, and the type in which it is stored."""

    name: str
    type: str  # "u8", "u32", "i16", "f16", "f24", "f32" or "f64"
    """Most numbers of "i16" are small: 128 is added, so that the high byte of those from −128 to 127 is 0."""
    data: NDArray[Any]


def byte_planes(array: Array) -> bytes:
    """Return all lowest bytes, then all second ones, and so on: similar bytes compress better together."""
    dtype = {"u8": "u1", "u32": "<u4", "i16": "<i2", "f16": "<f2", "f24": "<f4", "f32": "<f4", "f64": "<f8"}[
        array.type
    ]
    raw = np.ascontiguousarray(array.data.astype(dtype, copy=False)).reshape(-1)
    if array.type == "i16":
        raw = raw + np.int16(128)
    planes = raw.view(np.uint8).reshape(-1, raw.itemsize).T
    return np.ascontiguousarray(planes[1:] if array.type == "f24" else planes).tobytes()


def deflate(data: bytes, noise: bool = False) -> str:
    """Compress with zlib and encode in base64.

    `noise` searches for runs of one byte only: random numbers repeat nothing else, and it is ten times as
    fast.
    """
    strategy = zlib.Z_RLE if noise else zlib.Z_DEFAULT_STRATEGY
    # 7: zlib then begins a new Huffman code after 8,192 numbers, which suits heads of different sizes.
    packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, 7, strategy)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")
