"""Measures the attention between the spans of a text: one pooled pass over each layer of a capture.

The baseline is uniform attention to the visible keys. It is the same for all layers with the same mask, and
computed once for them. Which key is a head's sink is decided by `regard.heads.measures.sink`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.heads.measures.chosen_keys import columns
from regard.heads.measures.sink import SINK, find_sink_keys
from regard.heads.measures.visible_keys import Visibility, find_visibility
from regard.maps import AttentionMap
from regard.maps.spans import Spans
from regard.spans.table import REST_NAME, SINK_NAME, SpanTable
from regard.spans.text_maps import choose_stack, choose_text, text_positions

if TYPE_CHECKING:
    from regard.recorder.capture_result import Capture

Parts = Spans | Sequence[int] | Tensor
"""Spans, or increasing positions at which to cut."""


class MaskBaseline(NamedTuple):
    """What the layers with one mask have in common."""

    matrix: tuple[int, int, int, int]
    mask: Mask
    visibility: Visibility
    mass: Tensor  # (h, rows, parts) of uniform attention


class ColumnParts(NamedTuple):
    """The columns of a table as spans without gaps, and the number of the column that each belongs to."""

    spans: Spans
    column: Tensor  # (parts,)
    key_column: Tensor  # (S,) the column of each key
    names: tuple[str, ...]


@torch.no_grad()
def measure_spans(
    seen: Capture,
    rows: Parts,
    cols: Parts | None = None,
    *,
    batch: int | None = None,
    stack: str | None = None,
) -> SpanTable:
    """The table of `Capture.spans`, whose arguments these are."""
    b = choose_text(seen, batch)
    layers = [layer for layer in choose_stack(seen, stack) if not layer.is_linear]
    for layer in layers:
        layer.check_tokens("attention between spans")
    if not layers:
        raise ValueError("spans: expected a layer of softmax attention, got linear layers only")
    row_spans = _as_spans("rows", rows)
    col_spans = row_spans if cols is None else _as_spans("cols", cols)
    baselines: list[MaskBaseline] = []
    places, masses, uniform_masses = [], [], []
    for layer in layers:
        whole = layer.softmax_map("spans")
        m = text_positions(seen, layer).select(whole, b)
        # Rows are numbered as the tokens of the text; the first queries of a cached text may be missing.
        first = 0 if layer.stack == "cross" else m.first_position
        own_rows = _within("rows", row_spans, first, m.matrix[2] + first)
        queries = own_rows.shift(-first)
        parts = _column_parts(_within("cols", col_spans, 0, m.matrix[3]), m.matrix[3])
        # By the mask of the whole capture and not of the selected text, whose mask is a new object for each
        # layer.
        baseline = next((x for x in baselines if x.matrix == whole.matrix and x.mask == whole.mask), None)
        if baseline is None:
            visibility = find_visibility(m)
            pooled = _pool(visibility.uniform, queries, parts.spans)
            baseline = MaskBaseline(whole.matrix, whole.mask, visibility, pooled)
            baselines.append(baseline)
        sinks = _sink_keys(m, baseline.visibility)  # (1, H)
        mass, uniform_mass = (
            _by_column(pooled, _row_means(columns(x, sinks), queries), sinks, parts)
            for x, pooled in (
                (m, _pool(m, queries, parts.spans)),
                (baseline.visibility.uniform, baseline.mass),
            )
        )
        places += [(layer.key, head) for head in layer.heads]
        masses.append(mass)
        uniform_masses.append(uniform_mass.expand(mass.shape))
    return SpanTable(
        row_spans.names,
        parts.names,
        tuple(places),
        torch.cat(masses)[None].cpu(),
        torch.cat(uniform_masses)[None].cpu(),
        seen.model,
    )


def _as_spans(name: str, parts: Parts | str) -> Spans:
    if isinstance(parts, Spans):
        return parts
    if isinstance(parts, str):
        raise ValueError(
            f"{name}: expected spans or increasing positions, got {parts!r}: write "
            "regard.spans.words(tokenizer, text)"
        )
    try:
        return Spans.from_edges(parts)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).partition(': ')[2]}") from None


def _within(name: str, spans: Spans, first: int, last: int) -> Spans:
    """The spans, if they are of the positions from `first` to `last`."""
    if not len(spans):
        raise ValueError(f"{name}: expected at least one span, got none")
    if spans.starts[0] < first or spans.stops[-1] > last:
        raise ValueError(
            f"{name}: expected spans of the text's {last - first} tokens, from {first} to {last}, got "
            f"{spans.starts[0]} to {spans.stops[-1]}: are they of another text?"
        )
    return spans


def _column_parts(spans: Spans, S: int) -> ColumnParts:
    """The columns and the gaps between them, which are one column, the last, if there are any."""
    key_column = spans.membership(S)  # −1 in a gap
    has_rest = bool((key_column < 0).any())
    sink, rest = len(spans), len(spans) + 1
    edges = sorted({0, S, *spans.starts, *spans.stops})
    key_column = key_column.masked_fill(key_column < 0, rest)
    names = (*spans.names, SINK_NAME, *([REST_NAME] if has_rest else []))
    assert sink == names.index(SINK_NAME)
    return ColumnParts(
        Spans.from_edges(edges), key_column[torch.tensor(edges[:-1], device="cpu")], key_column, names
    )


def _pool(m: AttentionMap, rows: Spans, cols: Spans) -> Tensor:
    """The mean row mass of each cell, (h, rows, cols), in float64."""
    mass = m.pool(rows, cols)
    assert isinstance(mass, Tensor)
    # float64, since differences of sums are taken below.
    return mass[0].double()


def _sink_keys(m: AttentionMap, visibility: Visibility) -> Tensor:
    """The sink key of every head, (1, H); −1 for a head that has none."""
    num_queries = (visibility.keys > 0).sum(-1, keepdim=True)
    sinks = find_sink_keys(m.received(), visibility.queries, num_queries)
    return sinks.keys.masked_fill(sinks.shares <= SINK, -1)


def _row_means(weights: Tensor, rows: Spans) -> Tensor:
    """The mean of weights (1, H, T) over the queries of each span, (H, rows), in float64."""
    weights = weights[0].double()
    return torch.stack([weights[:, row.start : row.stop].mean(-1) for row in rows], -1)


def _by_column(pooled: Tensor, on_sink: Tensor, sinks: Tensor, parts: ColumnParts) -> Tensor:
    """Add up the parts (h, rows, parts) of each column, with the sink apart: (H, rows, cols)."""
    H = on_sink.shape[0]
    mass = pooled.new_zeros(H, pooled.shape[1], len(parts.names))
    mass.index_add_(2, parts.column.to(mass.device), pooled.expand(H, -1, -1))
    sink = parts.names.index(SINK_NAME)
    for head, key in enumerate(sinks[0].tolist()):
        if key >= 0:
            mass[head, :, parts.key_column[key]] -= on_sink[head]
            mass[head, :, sink] = on_sink[head]
    # What is left of a span after its sink is taken out may be −1e-9 by rounding.
    return mass.clamp_(min=0.0)
