"""Tiles at every level, against the whole matrix."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.map_view import tiles
from regard.support.lru import LRUCache
from tests import truth
from tests.captures import captured, layer_of

MASKS = [
    regard.causal,
    regard.causal & regard.window(90),
    regard.full,
    regard.causal | regard.prefix(37),
    regard.rule(lambda b, h, q, k: (q - k) % 3 == h % 3),
    regard.causal & regard.alibi(4),
]


def pooled(matrix: torch.Tensor, z: int, i: int, j: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tile by its definition: the mass and the greatest of each cell of a matrix."""
    size = 1 << z
    part = matrix[i * 256 * size : (i + 1) * 256 * size, j * 256 * size : (j + 1) * 256 * size]
    return truth.cells(part, *([(at, min(at + size, n)) for at in range(0, n, size)] for n in part.shape))


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("z", "i", "j"), [(0, 1, 0), (1, 0, 1), (1, 1, 1), (2, 0, 0)])
def test_tiles_are_the_matrix_pooled(mask: regard.Mask, z: int, i: int, j: int) -> None:
    T = 541  # whole cells at no level but the finest
    seen = captured(T, layers=1, mask=mask)
    found = Contents(seen)[0].tile("0", 2, z, i, j)
    matrix, allowed = seen[0].to_dense()[0, 2].double(), mask.tile(range(T), range(T), (1, 4, T, T))
    visible = allowed if allowed.ndim == 2 else allowed[0, 2]
    mass, peak = pooled(matrix, z, i, j)
    hidden = pooled(visible.double(), z, i, j)[1] == 0
    torch.testing.assert_close(found.mass.double(), mass.double(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.max.double(), peak.double().where(~hidden, -1.0), atol=1e-6, rtol=1e-5)


def test_more_keys_than_queries() -> None:
    q, k = torch.randn(1, 1, 300, 4), torch.randn(1, 1, 500, 4)
    m = regard.attention_map(q, k, mask=regard.causal)
    contents = Contents(Capture([layer_of(m)], "m"))
    assert contents.meta["texts"][0]["layers"][0]["queries_from"] is None
    found = contents[0].tile(0, 0, 1, 0, 0)
    mass, _ = pooled(m.to_dense()[0, 0].double(), 1, 0, 0)
    torch.testing.assert_close(found.mass.double(), mass.double(), atol=1e-6, rtol=1e-5)


def test_a_tile_whose_parts_are_known_is_assembled_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    m = captured(700, layers=1, heads=1, kv_heads=1)[0]
    direct = tiles.TilePyramid(m, LRUCache(64)).tile(1, 0, 0)
    pyramid = tiles.TilePyramid(m, LRUCache(64))
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pyramid.tile(0, *place)
    monkeypatch.delattr(tiles, "pool_cells")  # nothing is computed
    for a, b in zip(pyramid.tile(1, 0, 0), direct, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
