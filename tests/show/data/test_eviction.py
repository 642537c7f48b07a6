"""What a cache that forgets would lose, against the dense matrix and against the table of heads."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.heads import describe
from regard.show.data.contents import Contents
from regard.show.data.eviction import QUERIES, layer_eviction, windows
from tests.captures import captured


@pytest.mark.parametrize("mask", [regard.causal, regard.causal & regard.window(20)], ids=str)
@pytest.mark.parametrize("rows", [30, 50])
def test_it_is_the_mass_on_what_is_forgotten(mask: regard.Mask, rows: int) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 4, rows, 8), torch.randn(1, 2, 50, 8)
    m = regard.attention_map(q, k, mask=mask)
    found, dense = layer_eviction(m), m.to_dense()[0]
    seen = mask.tile(slice(0, rows), slice(0, 50), m.matrix).expand(1, 1, rows, 50)[0, 0]
    places = torch.arange(rows).view(-1, 1) + 50 - rows
    keys = torch.arange(50)
    for w, window in enumerate(found["windows"]):
        for s, sinks in enumerate(found["sinks"]):
            forgotten = (keys >= sinks) & (keys <= places - window)
            had = (forgotten & seen).any(-1)
            for h in range(4):
                got = found["lost"][h][w][s]
                if not had.any():
                    assert got is None
                else:
                    assert got == pytest.approx(float((dense[h] * forgotten).sum(-1)[had].mean()), abs=1e-6)


def test_it_is_the_score_that_heads_have() -> None:
    seen = captured(100)
    contents = Contents(seen)
    for row in describe(seen.maps, seen.ids, policy=(4, 24)):
        found = contents.eviction(0, row.key)
        lost = found["lost"][row.head][found["windows"].index(24)][found["sinks"].index(4)]
        assert lost == pytest.approx(row.scores["eviction"].value, rel=1e-4)


def test_a_long_text_is_looked_at_here_and_there() -> None:
    m = captured(1000, layers=1, heads=1, kv_heads=1)[0]
    found = layer_eviction(m)
    assert found["queries"] == QUERIES
    (row,) = describe([m], torch.arange(1000)[None] % 13, policy=(4, 64))
    lost = found["lost"][0][found["windows"].index(64)][3]
    assert lost == pytest.approx(row.scores["eviction"].value, rel=0.05)


def test_looking_ahead_is_said() -> None:
    assert layer_eviction(captured(20, mask=regard.full)[0])["ahead"]
    assert not layer_eviction(captured(20)[0])["ahead"]


def test_the_windows_are_shorter_than_the_text() -> None:
    assert windows(4) == []
    assert windows(64)[-1] == 48
    assert all(size < 1000 for size in windows(1000))
