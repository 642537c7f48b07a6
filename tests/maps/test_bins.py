"""Bins: every position of a span once, padded and interleaved ones too, and joined as the definition says."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.maps.spans import equal_bounds
from regard.maps.tile_passes.bins import make_bins
from tests.maps.drawn_maps import cells, close, spans

CPU = torch.device("cpu")


@given(st.data())
def test_joined_bins_are_the_reductions_of_their_spans(pick: Any) -> None:
    n = pick.draw(st.integers(1, 60))
    equal = st.integers(1, n).map(lambda count: equal_bounds(n, count))
    bounds = pick.draw(st.one_of(equal, spans(n).map(lambda drawn: drawn.bounds())))
    how = {name: pick.draw(st.booleans()) for name in ("pad", "interleave")}
    bins = make_bins(bounds, pick.draw(st.integers(1, 20)), CPU, **how)
    x = torch.randn(n, 3, dtype=torch.float64)
    parts = [x[a:b] for a, b in bounds.T.tolist()]
    sums, tops = x.new_zeros(2, len(parts), 3)
    for side in bins.sides:
        entries = bins.select(x)[side.places].clone()
        if side.padding is not None:
            entries.index_fill_(0, side.padding, 0.0)
        sums[side.bins] += bins.join(entries, side, "sum")
        by_column = bins.join(entries.mT, side, "amax", dim=1)
        tops[side.bins] = torch.maximum(tops[side.bins], by_column.mT)
    close(sums, torch.stack([part.sum(0) for part in parts]))
    close(tops, torch.stack([part.amax(0).clamp(min=0) for part in parts]))


@pytest.mark.parametrize("sizes", [(64, 50), (63, 50), (7, 9)], ids=str)
@pytest.mark.parametrize(
    "mask", [regard.full, regard.causal, regard.causal & regard.window(90), ~regard.causal], ids=str
)
@pytest.mark.parametrize("gain", [False, True])
def test_cells_of_aligned_and_of_padded_bins(sizes: tuple[int, int], mask: Any, gain: bool) -> None:
    T, S = 640, 700
    q, k = (torch.randn(1, 2, n, 8, dtype=torch.float64) for n in (T, S))
    m = regard.attention_map(q, k, mask=mask)
    matrix = m.weighted(torch.randn(S, dtype=torch.float64)) if gain else m
    rows, cols = (regard.maps.Spans(*equal_bounds(n, size)) for n, size in zip((T, S), sizes, strict=True))
    found = matrix.pool(*sizes, "both")
    for ours, expected in zip(found, cells(matrix.to_dense(), rows, cols), strict=True):
        close(ours, expected)
    if not gain:
        summary = m.summary(*sizes)
        close(summary.received, m.to_dense().sum(-2))
        close(summary.entropy, torch.special.entr(m.to_dense()).sum(-1))
