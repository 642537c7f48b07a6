"""The Map view: tiles at every level, of tokens and of words and sentences, against the whole matrix."""

from itertools import pairwise

import pytest
import torch

import regard
from regard import attention_map, causal
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.map_view import tiles
from regard.show.data.map_view.display_precision import for_display
from regard.show.data.map_view.quantity import Quantity, text_units
from regard.support.lru import LRUCache
from tests import truth
from tests.captures import captured, layer_of
from tests.sampling import combine

MASKS = [
    regard.causal,
    regard.causal & regard.window(90),
    regard.full,
    regard.causal | regard.prefix(37),
    regard.rule(lambda b, h, q, k: (q - k) % 3 == h % 3),
    regard.causal & regard.alibi(4),
]


def pooled(matrix, z, i, j):
    """A tile by its definition: the mass and the greatest of each cell of a matrix."""
    size = 1 << z
    part = matrix[i * 256 * size : (i + 1) * 256 * size, j * 256 * size : (j + 1) * 256 * size]
    return truth.cells(part, *([(at, min(at + size, n)) for at in range(0, n, size)] for n in part.shape))


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("z", "i", "j"), [(0, 1, 0), (1, 0, 1), (1, 1, 1), (2, 0, 0)])
def test_tiles_are_the_matrix_pooled(mask, z, i, j):
    T = 541  # whole cells at no level but the finest
    seen = captured(T, layers=1, mask=mask)
    found = Contents(seen)[0].tile("0", 2, z, i, j)
    matrix, allowed = seen[0].to_dense()[0, 2].double(), mask.tile(range(T), range(T), (1, 4, T, T))
    visible = allowed if allowed.ndim == 2 else allowed[0, 2]
    mass, peak = pooled(matrix, z, i, j)
    hidden = pooled(visible.double(), z, i, j)[1] == 0
    torch.testing.assert_close(found.mass.double(), mass.double(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.max.double(), peak.double().where(~hidden, -1.0), atol=1e-6, rtol=1e-5)


def test_more_keys_than_queries():
    q, k = torch.randn(1, 1, 300, 4), torch.randn(1, 1, 500, 4)
    m = regard.attention_map(q, k, mask=regard.causal)
    contents = Contents(Capture([layer_of(m)], "m"))
    assert contents.meta["texts"][0]["layers"][0]["queries_from"] is None
    found = contents[0].tile(0, 0, 1, 0, 0)
    mass, _ = pooled(m.to_dense()[0, 0].double(), 1, 0, 0)
    torch.testing.assert_close(found.mass.double(), mass.double(), atol=1e-6, rtol=1e-5)


def test_a_tile_whose_parts_are_known_is_assembled_and_is_the_same(monkeypatch):
    m = captured(700, layers=1, heads=1, kv_heads=1)[0]
    direct = tiles.TilePyramid(m, LRUCache(64)).tile(1, 0, 0)
    pyramid = tiles.TilePyramid(m, LRUCache(64))
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        pyramid.tile(0, *place)
    monkeypatch.delattr(tiles, "pool_cells")  # nothing is computed
    for a, b in zip(pyramid.tile(1, 0, 0), direct, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


UNIT_MASKS = [
    regard.causal,
    regard.full,
    regard.causal & regard.window(90),
    regard.rule(lambda b, h, q, k: (q - k) % 3 == h % 3),
]
WORDS = Quantity(units="words")
SENTENCES = Quantity(units="sentences")
PIECES = [
    *("<s>", "The", " light", "house", " is", " lit", ".", " It", " is"),
    *(" 3", ".", "5", " m", "!", "\n", " We"),
]


def by_units(matrix, rows, cols):
    """Pool a matrix over units by its definition: summed over keys, averaged over queries."""
    return truth.cells(matrix.double(), *map(list, (pairwise(rows), pairwise(cols))))[0]


def test_words_and_sentences_of_tokens():
    assert text_units(PIECES)["words"] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16]
    assert text_units(PIECES)["sentences"] == [0, 1, 7, 14, 16]


@pytest.mark.parametrize(
    ("mask", "quantity"),
    combine(UNIT_MASKS, [WORDS, SENTENCES]),
    ids=lambda x: "" if isinstance(x, Quantity) else str(x),
)
def test_tiles_rows_and_columns_of_units_are_the_matrix_pooled(mask, quantity):
    tokens = (PIECES * 6)[:91]
    seen = captured(91, layers=1, mask=mask, tokens=tokens)
    contents = Contents(seen)
    edges = text_units(tokens)[quantity.units]
    dense = [m.double() for m in seen[0].to_dense()[0]]
    expected = by_units(dense[2], edges, edges)
    found = contents[0].tile(0, 2, 0, 0, 0, quantity=quantity)
    torch.testing.assert_close(found.mass.double(), expected, atol=1e-6, rtol=1e-5)
    allowed = mask.tile(range(91), range(91), (1, 4, 91, 91))
    visible = by_units((allowed if allowed.ndim == 2 else allowed[0, 2]).double(), edges, edges) > 0
    assert torch.equal(found.max >= 0, visible)
    for unit in (0, 3, len(edges) - 2):
        row = contents[0].row(0, 2, unit, quantity).double()
        torch.testing.assert_close(row, expected[unit], atol=1e-6, rtol=1e-5)
        column = contents[0].column(0, 2, unit, quantity).double()
        torch.testing.assert_close(column, expected[:, unit], atol=1e-6, rtol=1e-5)
    mean = contents[0].row(0, "mean", 3, quantity).double()
    torch.testing.assert_close(
        mean, sum(by_units(m, edges, edges)[3] for m in dense) / 4, atol=1e-6, rtol=1e-5
    )


def test_coarse_tiles_of_words_count_the_tokens_of_each(monkeypatch):
    tokens = (PIECES * 90)[:1300]
    seen = captured(1300, layers=1, tokens=tokens)
    edges = text_units(tokens)["words"]
    coarse = [*edges[:-1:4], 1300]
    assert len(coarse) < 256 < len(edges)  # the whole map is one tile of level 2
    expected = by_units(seen[0].to_dense()[0, 1].double(), coarse, coarse)
    direct = Contents(seen)[0].tile(0, 1, 2, 0, 0, quantity=WORDS)
    monkeypatch.setattr(tiles, "FINE", 0)
    assembled = Contents(seen)[0].tile(0, 1, 2, 0, 0, quantity=WORDS)
    for found in (direct, assembled):
        torch.testing.assert_close(found.mass.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(direct.max >= 0, assembled.max >= 0)


def test_units_of_another_text_and_what_is_not_known():
    tokens = (PIECES * 3)[:40]
    other = captured(40, tokens=[" a"] * 40, seed=3)
    contents = Contents([captured(40, tokens=tokens), other])
    edges = text_units(tokens)["words"]
    found = contents[1].tile(0, 2, 0, 0, 0, quantity=Quantity(units="words", units_of=0))
    expected = by_units(other[0].to_dense()[0, 2].double(), edges, edges)
    torch.testing.assert_close(found.mass.double(), expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(KeyError, match="row: expected a number from 0 to"):
        contents[0].row(0, 2, 39, WORDS)
    with pytest.raises(KeyError, match="units: expected one of tokens, words, sentences"):
        Quantity.parse(units="letters")
    with pytest.raises(KeyError, match="shade: expected one of weights, values, logit"):
        Quantity.parse(shade="red")
    unknown = captured(40)
    unknown.tokens = None
    with pytest.raises(KeyError, match="the words of text 0 are not known"):
        Contents(unknown)[0].tile(0, 2, 0, 0, 0, quantity=WORDS)
    assert Contents(unknown).meta["texts"][0]["spans"] == {}


def large_map(size):
    """Two heads: one of usual scores, and one whose row log-sum-exp is about `size`."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 64, 8) / 4, torch.randn(1, 2, 64, 8)
    k[:, :, :, 0] = 1.0
    q[:, 1, :, 0] += size * 8**0.5
    return attention_map(q, k, mask=causal)


def test_heads_with_large_scores_are_drawn_in_float32_and_differ_in_no_digit_that_is_seen():
    m = large_map(100.0)
    shown = for_display(m)
    assert m.precise.large.tolist() == [[False, True]]
    assert not shown.precise.large.any()
    for a, b in zip(shown.pool(8, 8, "both"), m.pool(8, 8, "both"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_head_whose_scores_are_too_large_for_float32_stays_in_float64():
    m = large_map(4000.0)
    shown = for_display(m)
    assert shown.precise.large.tolist() == [[False, True]]
    torch.testing.assert_close(shown.pool(8, 8), m.pool(8, 8), rtol=0, atol=0)
