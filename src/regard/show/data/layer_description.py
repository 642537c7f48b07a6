"""A layer as the page knows it, as plain data: its sizes, its mask, its certificate, the tokens of its axes.

This file knows captured layers and the names of tokens; it does not know maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.recorder import Evidence, Layer

TEXT, TARGET = "tokens", "target_tokens"
TokenLists = Mapping[str, list[str] | None]
"""The lists of tokens of a text by their names: its own, those of its target, and those of patches."""


class AxisTokens(NamedTuple):
    """The tokens along both axes of a layer."""

    queries_of: str
    """The name of the list of the queries' tokens."""
    keys_of: str
    queries_from: int | None
    """The index of the first query's token in its list; None if the tokens are not known."""
    keys_from: int | None
    queries: list[str] | None
    """The tokens of the queries."""
    keys: list[str] | None
    """The tokens of the keys."""


def describe_layer(
    layer: Layer, evidence: Evidence, lists: TokenLists, patch_axes: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Describe a layer as plain data.

    `patch_axes` are the names of the lists of a layer whose tokens are patches. `queries_of` and `keys_of`
    name the list of tokens that each axis shows, `queries_from` and `keys_from`
    the index of its first token in that list, or None if the tokens are not known.
    """
    _, H, T, S = layer.shape
    settings = layer.settings
    axes = find_axis_tokens(layer, lists, patch_axes)
    return {
        "key": str(layer.key),
        "name": layer.name,
        "stack": layer.stack,
        "number": layer.number,
        "heads": list(layer.heads),
        **settings._asdict(),
        "group": H // settings.kv_heads,
        "rows": T,
        "cols": S,
        "queries_of": axes.queries_of,
        "keys_of": axes.keys_of,
        "queries_from": axes.queries_from,
        "keys_from": axes.keys_from,
        "evidence": _evidence(evidence),
    }


def find_axis_tokens(
    layer: Layer, lists: TokenLists, patch_axes: tuple[str, str] | None = None
) -> AxisTokens:
    """Find the tokens of a layer's queries and keys among the lists of a text (see `describe_layer`)."""
    _, _, T, S = layer.shape
    decodes = lists.get(TARGET) is not None and layer.stack in ("decoder", "cross")
    # Keys of cross-attention are the encoder's tokens, its queries the decoder's.
    names = (TARGET if decodes else TEXT, TARGET if decodes and layer.stack != "cross" else TEXT)
    names = patch_axes or names
    queries, keys = (lists.get(name) or [] for name in names)
    # Cross-attention without target tokens: the queries' tokens are not known, and the source's would be
    # wrong.
    is_cross = layer.stack == "cross" and not decodes
    if len(queries) < T or len(keys) < S or is_cross or layer.evidence.unplaced is not None:
        return AxisTokens(*names, None, None, None, None)
    # With a cache the layer has fewer queries than tokens: they are the last ones.
    first_query, first_key = len(queries) - T, len(keys) - S
    return AxisTokens(*names, first_query, first_key, queries[first_query:], keys[first_key:])


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "certified": evidence.certified,
        "text": str(evidence),
        "problem": evidence.problem,
        "unplaced": evidence.unplaced,
        "difference": _finite(evidence.difference),
        "allowed": _finite(evidence.tolerance),
        "row_sums": _finite(evidence.row_sums),
        "rows": evidence.rows,
        "of": evidence.total_rows,
    }


# JSON has neither NaN nor infinity.
def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
