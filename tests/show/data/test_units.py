"""Words and sentences of a text: every token belongs to one, and maps of them are the weights pooled."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import regard
from regard.show.data.contents import Contents
from regard.show.data.map_view import tiles
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.map_view.units import text_units
from tests import truth
from tests.captures import captured
from tests.sampling import combine

MASKS = [
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


def pooled(matrix: torch.Tensor, rows: list[int], cols: list[int]) -> torch.Tensor:
    """Pool a matrix over units by its definition: summed over keys, averaged over queries."""
    return truth.cells(matrix.double(), *map(list, (pairwise(rows), pairwise(cols))))[0]


def test_words_and_sentences_of_tokens() -> None:
    assert text_units(PIECES)["words"] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16]
    assert text_units(PIECES)["sentences"] == [0, 1, 7, 14, 16]


@pytest.mark.parametrize(
    ("mask", "quantity"),
    combine(MASKS, [WORDS, SENTENCES]),
    ids=lambda x: "" if isinstance(x, Quantity) else str(x),
)
def test_tiles_rows_and_columns_of_units_are_the_matrix_pooled(mask: regard.Mask, quantity: Quantity) -> None:
    tokens = (PIECES * 6)[:91]
    seen = captured(91, layers=1, mask=mask, tokens=tokens)
    contents = Contents(seen)
    edges = text_units(tokens)[quantity.units]
    dense = [m.double() for m in seen[0].to_dense()[0]]
    expected = pooled(dense[2], edges, edges)
    found = contents[0].tile(0, 2, 0, 0, 0, quantity=quantity)
    torch.testing.assert_close(found.mass.double(), expected, atol=1e-6, rtol=1e-5)
    allowed = mask.tile(range(91), range(91), (1, 4, 91, 91))
    visible = pooled((allowed if allowed.ndim == 2 else allowed[0, 2]).double(), edges, edges) > 0
    assert torch.equal(found.max >= 0, visible)
    for unit in (0, 3, len(edges) - 2):
        row = contents[0].row(0, 2, unit, quantity).double()
        torch.testing.assert_close(row, expected[unit], atol=1e-6, rtol=1e-5)
        column = contents[0].column(0, 2, unit, quantity).double()
        torch.testing.assert_close(column, expected[:, unit], atol=1e-6, rtol=1e-5)
    mean = contents[0].row(0, "mean", 3, quantity).double()
    torch.testing.assert_close(mean, sum(pooled(m, edges, edges)[3] for m in dense) / 4, atol=1e-6, rtol=1e-5)


def test_coarse_tiles_of_words_count_the_tokens_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = (PIECES * 90)[:1300]
    seen = captured(1300, layers=1, tokens=tokens)
    edges = text_units(tokens)["words"]
    coarse = [*edges[:-1:4], 1300]
    assert len(coarse) < 256 < len(edges)  # the whole map is one tile of level 2
    expected = pooled(seen[0].to_dense()[0, 1].double(), coarse, coarse)
    direct = Contents(seen)[0].tile(0, 1, 2, 0, 0, quantity=WORDS)
    monkeypatch.setattr(tiles, "FINE", 0)
    assembled = Contents(seen)[0].tile(0, 1, 2, 0, 0, quantity=WORDS)
    for found in (direct, assembled):
        torch.testing.assert_close(found.mass.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(direct.max >= 0, assembled.max >= 0)


def test_units_of_another_text_and_what_is_not_known() -> None:
    tokens = (PIECES * 3)[:40]
    other = captured(40, tokens=[" a"] * 40, seed=3)
    contents = Contents([captured(40, tokens=tokens), other])
    edges = text_units(tokens)["words"]
    found = contents[1].tile(0, 2, 0, 0, 0, quantity=Quantity(units="words", units_of=0))
    expected = pooled(other[0].to_dense()[0, 2].double(), edges, edges)
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
