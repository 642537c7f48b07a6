"""Drawn maps and spans with their dense float64 counterparts, for the tests of maps."""

from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st

import regard
from regard.attention.backends import tiles
from regard.maps import Spans, signed_map
from regard.maps.tile_passes import head_pass
from tests import strategies, truth


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "ROWS", 4)
    monkeypatch.setattr(tiles, "COLS", 5)
    monkeypatch.setattr(tiles, "TILE_NUMBERS", 50)
    monkeypatch.setattr(head_pass, "QUERIES", 5)
    monkeypatch.setattr(head_pass, "KEYS", 4)
    monkeypatch.setattr(signed_map, "TILE_NUMBERS", {"cpu": 50, "cuda": 50})
    monkeypatch.setattr(signed_map, "SIDES", (2, 5))


KINDS = {"attention": 1e-12, "weighted": 1e-11, "difference": 1e-11}
"""The kinds of maps, and how far their numbers may be from those of the dense matrix."""


def normal(draw, *shape):
    made = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    return torch.randn(shape, generator=made, dtype=torch.float64)


@st.composite
def maps(draw, most=12, kind="attention"):
    """A map in float64, its dense matrix by the definition, and the values and outputs that go with it."""
    n = draw(strategies.sizes(most))

    def attention():
        drawn, softcap = draw(strategies.masks(n)), draw(st.sampled_from([None, None, 1.5]))
        x = strategies.tensors(n, draw(st.integers(0, 2**20)), torch.float64)
        sinks = x.sinks if draw(st.booleans()) else None
        right = truth.attention(
            x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias(), softcap=softcap, sinks=sinks
        )
        m = regard.attention_map(x.q, x.k, mask=drawn.mask, softcap=softcap, sinks=sinks)
        return m, right.weights, (x, right)

    def perhaps_weighted(always):
        m, A, more = attention()
        if not always and draw(st.booleans()):
            return m, A, more
        u = 3 * normal(draw, n.B, n.H, n.S)
        return m.weighted(u), A * u[:, :, None], more

    if kind == "attention":
        return attention()
    m, A, more = perhaps_weighted(kind == "weighted")
    if kind == "difference":
        other, B, _ = perhaps_weighted(False)
        m, A = m - other, A - B
    return m, A, more


@st.composite
def spans(draw, n):
    """Spans of n positions: some without gaps, some with, equal and unequal."""
    edges = sorted(draw(st.sets(st.integers(0, n), min_size=2, max_size=n + 1)))
    pairs = list(pairwise(edges))
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    pairs = [pair for pair, keep in zip(pairs, kept, strict=True) if keep] or pairs
    return Spans([a for a, _ in pairs], [b for _, b in pairs])


def check_index(m, A, pick):
    """Compare a part of a map with that of its dense matrix."""
    index = []
    for size in A.shape[: pick.draw(st.integers(1, 4))]:
        start = pick.draw(st.integers(0, size - 1))
        span = slice(start, pick.draw(st.integers(start + 1, size)))
        index.append(pick.draw(st.sampled_from([start, start - size, span, slice(None)])))
    part, dense = m[tuple(index)], A[tuple(index)]
    names_row = len(index) > 2 and isinstance(index[2], int)
    names_keys = len(index) > 3 and index[3] != slice(None)
    assert isinstance(part, torch.Tensor) == (names_row or names_keys)
    close(part if isinstance(part, torch.Tensor) else part.to_dense(), dense, 1e-11)
    if not isinstance(part, torch.Tensor):
        close(part.received(), dense.sum(-2), 1e-11)


def close(found, expected, atol=1e-12):
    assert tuple(found.shape) == tuple(expected.shape)
    assert torch.allclose(found, expected, atol=atol, rtol=0)
