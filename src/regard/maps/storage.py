"""Maps on disk: a safetensors file with the tensors of a map, and its mask and options in the metadata.

Writing is atomic, so that an interrupted save leaves the old file as it was. `loader` opens such files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from regard.support.safetensor_files import write_safetensors

FORMAT = "regard.AttentionMap 1"
LINEAR_FORMAT = "regard.LinearAttentionMap 1"
KEPT = ("kept.mass", "kept.max")


class StoredMap(NamedTuple):
    """What a file holds of a map."""

    format: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]


class StorableMap(Protocol):
    """A map that can be written to a file."""

    def _stored(self) -> StoredMap:
        """Return what a file holds of it."""


def save(
    m: StorableMap,
    path: str | os.PathLike[str],
    extra: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write a map to a file, atomically, with `extra` tensors and `labels` beside its own."""
    stored = m._stored()
    metadata = {"format": stored.format, "map": json.dumps(stored.options), **(labels or {})}
    write_safetensors(path, {**stored.tensors, **(extra or {})}, metadata)
