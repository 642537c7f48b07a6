"""A hash of positions: numbers that look random and are the same every time, without a matrix of them."""

from __future__ import annotations

from torch import Tensor


def uniform_hash(q: Tensor, k: Tensor, h: Tensor, seed: int) -> Tensor:
    """Return a number from 0 to 1 for each query, key and head, which looks random and is always the same."""
    # The primes of xxHash keep queries, keys, heads and seeds apart.
    x = q * 0x9E3779B1 + k * 0x85EBCA77 + h * 0xC2B2AE3D + (seed + 1) * 0x27D4EB2F
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
        # PyTorch multiplies in int64, of which the lower 32 bits count.
        x = x & 0xFFFFFFFF
        x = (x ^ (x >> shift)) * factor
    return (x & 0xFFFFFF).double() / 0x1000000
