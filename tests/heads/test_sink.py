"""The sink key is the same in the head table, in the Map view and in saved pages."""

from __future__ import annotations

import pytest

import regard
from regard.show.data.contents import Contents
from tests.captures import captured


@pytest.mark.parametrize("T", [7, 30, 200])
@pytest.mark.parametrize("mask", [regard.causal, regard.full, regard.causal & regard.window(24)], ids=str)
def test_heads_have_the_same_sink_in_every_view(T: int, mask: regard.Mask) -> None:
    seen = captured(T, mask=mask, seed=T)
    contents = Contents(seen)
    for page_row, row in zip(contents[0].heads(), seen.heads(), strict=True):
        layer = seen.layer(row.key)
        on_map = contents[0].thumbnail(row.key).sinks[layer.heads.index(row.head)]
        assert page_row["sink_key"] == row.sink_key == on_map["key"], row.place
        assert on_map["share"] == pytest.approx(row.scores["sink"].value, abs=1e-4)
