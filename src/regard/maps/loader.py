"""Opens maps that `storage` wrote.

Opening reads the header only; the tensors are mapped into memory and read on use. Everything in the header is
checked, since anyone may have written it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.description import rebuild_mask
from regard.maps.index import Axes
from regard.maps.linear_layer import linear_attention_map
from regard.maps.linear_map import LinearAttentionMap
from regard.maps.map import AttentionMap
from regard.maps.storage import FORMAT, KEPT, LINEAR_FORMAT
from regard.maps.tile_passes.kept_overview import KeptOverview
from regard.support.files import (
    CaptureFileError,
    check_type,
    converting_errors,
    get_field,
    naming_errors,
    parse_object,
    shorten,
)

FORMATS = (FORMAT, LINEAR_FORMAT)


def decode(
    path: str | os.PathLike[str],
    metadata: Mapping[str, str],
    tensors: dict[str, Tensor],
    is_whole: bool = True,
) -> AttentionMap | LinearAttentionMap:
    """Make a map of the metadata and the tensors of a file; an error says what is wrong with it.

    If not `is_whole`, the file has some of the rows or keys of a map, and the mask of the whole map, whose
    size is not checked.
    """
    path = Path(path)
    with naming_errors(path, CaptureFileError, " is damaged"):
        options = parse_object(get_field(metadata, "map", str))
        if metadata["format"] == LINEAR_FORMAT:
            return _decode_linear(options, tensors)
        m = _decode(options, tensors, is_whole)
    # A mask of no rows or keys has no entry to ask for.
    if is_whole and 0 not in m.matrix:
        with converting_errors(path, CaptureFileError, "a map whose mask fits; it is damaged"):
            m.mask.tile(range(1), range(1), m.matrix)  # tensors of odd shapes and dtypes raise here
    return m


def _decode(options: dict[str, Any], tensors: dict[str, Tensor], is_whole: bool) -> AttentionMap:
    """The same for options that were parsed; a ValueError names the field that is wrong."""
    if missing := [name for name in ("q", "k", "lse") if name not in tensors]:
        raise ValueError(f"tensors: expected q, k and lse; missing: {', '.join(missing)}")
    q, k, lse, sinks = tensors["q"], tensors["k"], tensors["lse"], tensors.get("sinks")
    if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != k.shape[-1] or lse.shape != q.shape[:-1]:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, lse {tuple(lse.shape)} do not fit together"
        )
    mask, scale = rebuild_mask(get_field(options, "mask", dict), tensors), get_field(options, "scale", float)
    softcap = None if options.get("softcap") is None else get_field(options, "softcap", float)
    check_inputs(q, k, k, mask=mask if is_whole else None, scale=scale, softcap=softcap, sinks=sinks)
    if lse.dtype != working_dtype(q.dtype):
        raise ValueError(f"lse: expected {working_dtype(q.dtype)}, got {lse.dtype}")
    axes = _decode_axes(options, q.shape[:2])
    kept = _decode_kept(options, tensors, (*q.shape[:3], k.shape[2]), lse.dtype)
    return AttentionMap(
        q=q, k=k, lse=lse, mask=mask, scale=scale, softcap=softcap, sinks=sinks, axes=axes, kept=kept
    )


def _decode_kept(
    options: dict[str, Any], tensors: dict[str, Tensor], matrix: tuple[int, ...], dtype: torch.dtype
) -> KeptOverview | None:
    """The overview in a file of a map (B, H, T, S), or None if it has none."""
    if options.get("kept") is None:
        return None
    size = get_field(options, "kept", int)
    B, H, T, S = matrix
    if size < 1 or any(name not in tensors for name in KEPT):
        raise ValueError(f"kept: expected a size above 0 and {' and '.join(KEPT)}, got {shorten(size)}")
    mass, peak = (tensors[name] for name in KEPT)
    expected = (B, H, -(-T // size), -(-S // size))
    if any(x.shape != expected or x.dtype != dtype for x in (mass, peak)):
        found = " and ".join(f"{x.dtype} {tuple(x.shape)}" for x in (mass, peak))
        raise ValueError(f"kept: expected {dtype} {expected}, got {found}")
    return KeptOverview(size, mass, peak)


def _decode_linear(options: dict[str, Any], tensors: Mapping[str, Tensor]) -> LinearAttentionMap:
    """A linear layer's map from its options and tensors; a ValueError names the field that is wrong."""
    if missing := [name for name in LinearAttentionMap.TOKEN_FIELDS if name not in tensors]:
        raise ValueError(f"tensors: expected q, k, decay and beta; missing: {', '.join(missing)}")
    m = linear_attention_map(
        **{name: tensors[name] for name in LinearAttentionMap.TOKEN_FIELDS},
        skip=tensors.get("skip"),
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
    return m._with(rows=range(*rows), axes=_decode_axes(options, (B, H)))


def _decode_axes(options: dict[str, Any], sizes: Sequence[int]) -> Axes:
    """Which of the batch and head axes, of these sizes, a map shows; the others have one entry."""
    shown = [check_type("axes", axis, bool) for axis in get_field(options, "axes", list)]
    if len(shown) != 2 or any(size != 1 for size, there in zip(sizes, shown, strict=True) if not there):
        raise ValueError(f"axes: expected two that fit {tuple(sizes)}, got {shorten(shown)}")
    return Axes(*shown)
