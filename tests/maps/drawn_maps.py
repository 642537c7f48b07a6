"""Drawn maps and spans with their dense float64 counterparts, for the tests of maps."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import regard
from regard.attention.backends import tiles
from regard.maps import Spans, signed_map
from regard.maps.tile_passes import head_pass
from tests import strategies, truth


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ROWS", 4)
    monkeypatch.setattr(tiles, "COLS", 5)
    monkeypatch.setattr(tiles, "TILE_NUMBERS", 50)
    monkeypatch.setattr(head_pass, "QUERIES", 5)
    monkeypatch.setattr(head_pass, "KEYS", 4)
    monkeypatch.setattr(signed_map, "TILE_NUMBERS", {"cpu": 50, "cuda": 50})
    monkeypatch.setattr(signed_map, "SIDES", (2, 5))


@st.composite
def maps(draw: Any, most: int = 12) -> tuple[regard.AttentionMap, torch.Tensor, Any]:
    """A map in float64, its dense matrix by the definition, and the values and outputs that go with it."""
    n = draw(strategies.sizes(most))
    drawn = draw(strategies.masks(n))
    softcap = draw(st.sampled_from([None, None, 1.5]))
    x = strategies.tensors(n, draw(st.integers(0, 2**20)), torch.float64)
    sinks = x.sinks if draw(st.booleans()) else None
    right = truth.attention(
        x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias(), softcap=softcap, sinks=sinks
    )
    return (
        regard.attention_map(x.q, x.k, mask=drawn.mask, softcap=softcap, sinks=sinks),
        right.weights,
        (x, right),
    )


@st.composite
def spans(draw: Any, n: int) -> Spans:
    """Spans of n positions: some without gaps, some with, equal and unequal."""
    edges = sorted(draw(st.sets(st.integers(0, n), min_size=2, max_size=n + 1)))
    pairs = list(pairwise(edges))
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    pairs = [pair for pair, keep in zip(pairs, kept, strict=True) if keep] or pairs
    return Spans([a for a, _ in pairs], [b for _, b in pairs])


def cells(A: torch.Tensor, rows: int | Spans, cols: int | Spans) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean row mass and signed entry of largest magnitude of every cell, by the definition.

    A number of cells is one of equal ones, whose edges are at floor(i · T / rows).
    """
    r_bounds, c_bounds = (
        [(i * n // x, (i + 1) * n // x) for i in range(x)] if isinstance(x, int) else [span[:2] for span in x]
        for x, n in zip((rows, cols), A.shape[-2:], strict=True)
    )
    parts = [[A[..., r:r_stop, c:c_stop] for c, c_stop in c_bounds] for r, r_stop in r_bounds]
    mass = [torch.stack([x.sum(-1).mean(-1) for x in row], -1) for row in parts]
    most = [torch.stack([_largest(x.flatten(-2)) for x in row], -1) for row in parts]
    return torch.stack(mass, -2), torch.stack(most, -2)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.gather(-1, x.abs().argmax(-1, keepdim=True)).squeeze(-1)


def check_index(m: Any, A: torch.Tensor, pick: Any) -> Any:
    """Compare a part of a map with that of its dense matrix, and return both."""
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
    return part, dense


def close(found: Any, expected: torch.Tensor, atol: float = 1e-12) -> None:
    assert tuple(found.shape) == tuple(expected.shape)
    assert torch.allclose(found, expected, atol=atol, rtol=0)
