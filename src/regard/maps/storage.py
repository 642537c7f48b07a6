"""Maps on disk: a safetensors file with the tensors of a map, and its mask and options in the metadata.

Writing is atomic, so that an interrupted save leaves the old file as it was. `loader` opens such files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

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


def save(
    m: Any,
    path: str | os.PathLike[str],
    extra: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write a map to a file, atomically, with `extra` tensors and `labels` beside its own."""
    stored: StoredMap = m._stored()
    metadata = {"format": stored.format, "map": json.dumps(stored.options), **(labels or {})}
    write_safetensors(path, {**stored.tensors, **(extra or {})}, metadata)
