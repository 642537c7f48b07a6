"""Opens maps of linear layers that `linear_storage.py` wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.files import CaptureFileError, check_type, get_field, naming_errors, parse_object, shorten
from regard.maps.index import Axes
from regard.maps.linear_map import LinearAttentionMap, linear_attention_map
from regard.maps.linear_storage import TENSORS


def decode(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> LinearAttentionMap:
    """Make a map of the metadata and the tensors of a file; an error says what is wrong with it."""
    with naming_errors(path, CaptureFileError, " is damaged"):
        return _decode(parse_object(get_field(metadata, "map", str)), tensors)


def _decode(options: dict[str, Any], tensors: Mapping[str, Tensor]) -> LinearAttentionMap:
    """The same for options that were parsed; a ValueError names the field that is wrong."""
    if missing := [name for name in TENSORS[:-1] if name not in tensors]:
        raise ValueError(f"tensors: expected q, k, decay and beta; missing: {', '.join(missing)}")
    m = linear_attention_map(
        **{name: tensors[name] for name in TENSORS if name in tensors},
        delta_rule=get_field(options, "delta_rule", bool),
        scale=get_field(options, "scale", float),
        qk_norm=None if options.get("qk_norm") is None else get_field(options, "qk_norm", float),
    )
    if not all(math.isfinite(x) for x in (m.scale, m.qk_norm or 0.0)):
        raise ValueError("scale, qk_norm: expected finite numbers")
    B, H, _, S = m.matrix
    rows = [check_type("rows", n, int) for n in get_field(options, "rows", list)]
    if len(rows) != 2 or not 0 <= rows[0] <= rows[1] <= S:
        raise ValueError(f"rows: expected two positions of {S}, got {shorten(rows)}")
    axes = [check_type("axes", axis, bool) for axis in get_field(options, "axes", list)]
    if len(axes) != 2 or any(size != 1 for size, shown in zip((B, H), axes, strict=True) if not shown):
        raise ValueError(f"axes: expected two that fit {(B, H)}, got {shorten(axes)}")
    return m._with(rows=range(*rows), axes=Axes(*axes))
