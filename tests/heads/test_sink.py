"""The sink key has one definition: by loops, and the same in the head table, the Map view and saved pages."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.heads.measures.sink import find_sink_keys
from regard.recorder import Capture
from regard.show.data.contents import Contents
from tests.captures import captured


@pytest.mark.parametrize("T", [1, 5, 20, 31, 40, 100])
def test_it_is_the_key_with_the_largest_mean_among_those_that_enough_queries_see(T: int) -> None:
    torch.manual_seed(T)
    m = regard.attention_map(3 * torch.randn(1, 6, T, 4), torch.randn(1, 6, T, 4), mask=regard.causal)
    A, seeing = m.to_dense()[0], torch.arange(T, 0, -1)  # key j is seen by T − j queries
    found = find_sink_keys(A.sum(1), seeing, torch.tensor([T]))
    for h in range(6):
        counts = [j for j in range(T) if T - j >= min(16, T // 2 + 1)]
        means = {j: A[h, j:, j].mean().item() for j in counts}
        best = max(means, key=lambda j: means[j])
        assert found.keys[h] == best
        assert found.shares[h] == pytest.approx(means[best], abs=1e-6)


def _same_in_all_views(seen: Capture) -> None:
    contents = Contents(seen)
    rows = contents[0].heads()
    table = seen.heads()
    assert len(rows) == len(table)
    for page_row, row in zip(rows, table, strict=True):
        layer = seen.layer(row.key)
        on_map = contents[0].thumbnail(row.key).sinks[layer.heads.index(row.head)]
        assert page_row["sink_key"] == row.sink_key == on_map["key"], row.place
        assert on_map["share"] == pytest.approx(row.scores["sink"].value, abs=1e-4)


@pytest.mark.parametrize("T", [7, 30, 200])
@pytest.mark.parametrize("mask", [regard.causal, regard.full, regard.causal & regard.window(24)], ids=str)
def test_made_heads_have_the_same_sink_in_every_view(T: int, mask: regard.Mask) -> None:
    _same_in_all_views(captured(T, mask=mask, seed=T))
