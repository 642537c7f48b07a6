"""Maps of linear layers on disk: a safetensors file with their tensors, and their settings in its metadata.

As for an `AttentionMap`, opening reads the header only, and writing is atomic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.safetensor_files import write_safetensors

FORMAT = "regard.LinearAttentionMap 1"
TENSORS = ("q", "k", "decay", "beta", "skip")


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor | None],
    options: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
    label: Mapping[str, str] | None = None,
) -> None:
    """Write the `TENSORS` and options of a map to a file, atomically, with `extra` tensors beside them.

    `label` is metadata to write beside the format.
    """
    own = {name: x for name in TENSORS if (x := tensors[name]) is not None}
    metadata = {"format": FORMAT, "map": json.dumps(dict(options)), **(label or {})}
    write_safetensors(path, {**own, **(extra or {})}, metadata)
