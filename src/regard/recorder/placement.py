"""Where a rank's part of a capture is in the whole: which ranks there are, and which heads and rows each has.

When several processes run one model, each captures and certifies what it computes: a *shard*. `ShardId` says
which shard of which run it is, and `Placement` where a layer of it is in the layer of the model. This file
knows numbers only; how shards are written and joined is in `storage`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

MAX_RANKS = 4096
RUN = re.compile(r"[0-9a-f]{8,32}")

Runs = tuple[tuple[int, int], ...]
"""Runs of consecutive positions, each a first one and the one after its last: ((0, 512), (1536, 2048))."""


class ShardId(NamedTuple):
    """Which part of a capture a process has made."""

    run: str
    """8 to 32 hexadecimal digits, the same on all ranks of a run and others in every other: `new_run()`."""
    rank: int
    """The number of this process among those that run the model together, from 0."""
    of: int
    """The number of these processes."""

    @property
    def folder(self) -> str:
        """The name of this shard's folder."""
        return f"rank-{self.rank}-of-{self.of}-{self.run}"

    def check(self) -> ShardId:
        """Return it; a ValueError says what is wrong with it."""
        if not RUN.fullmatch(self.run):
            raise ValueError(f"run: expected 8 to 32 hexadecimal digits, got {self.run[:40]!r}")
        if not 0 <= self.rank < self.of <= MAX_RANKS:
            raise ValueError(
                f"rank: expected a number below that of the ranks, which are at most {MAX_RANKS}, "
                f"got {self.rank} of {self.of}"
            )
        return self


SHARD_FOLDER = re.compile(r"rank-(\d{1,4})-of-(\d{1,4})-([0-9a-f]{8,32})")


def new_run() -> str:
    """Return a name for a run, which one process makes and all of its ranks use."""
    return secrets.token_hex(8)


class Placement(NamedTuple):
    """Where a rank's map of a layer is in the map of the model's layer; `Layer.heads` numbers its heads."""

    total_heads: int
    """The number of query heads that the layer has in the model."""
    kv_heads: tuple[int, ...]
    """For each head of k and v, its number in the model. Ranks may have the same ones: they are kept once."""
    rows: Runs | None = None
    """The positions of its queries among all queries of the layer, in order; None if it has them all."""
    keys: Runs | None = None
    """The positions of its keys and values among all keys of the layer, in order; None if it has them all."""

    @property
    def is_map(self) -> bool:
        """Whether the shard is a map by itself: it has all keys, and its mask is about its own rows."""
        return self.rows is None and self.keys is None


def kv_slots(kv_head_of: Sequence[int]) -> list[int]:
    """Return the key/value heads to store for query heads that read these, in order.

    Each is stored once if equally many query heads read each of them, and once for every query head if not.

    >>> kv_slots([0, 0, 1, 1]), kv_slots([0, 0, 1])
    ([0, 1], [0, 0, 1])
    """
    heads = sorted(set(kv_head_of))
    evenly = list(kv_head_of) == sorted(heads * (len(kv_head_of) // max(len(heads), 1)))
    return heads if evenly else list(kv_head_of)
