"""`scores`: a number for each text and head, the same as in the table of that text alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import alibi, attention_map, causal
from regard.heads import HeadScores, describe, scores, uniform
from tests.sampling import examples


@settings(max_examples=examples(10))
@given(
    T=st.integers(2, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    near=st.integers(1, 5),
    seed=st.integers(0, 99),
    biased=st.booleans(),
)
def test_scores_and_those_of_uniform_attention_are_those_of_each_text(
    T: int, heads: tuple[int, int], near: int, seed: int, biased: bool
) -> None:
    torch.manual_seed(seed)
    H, G = heads
    q, k = torch.randn(2, H, T, 4, dtype=torch.float64), torch.randn(2, G, T, 4, dtype=torch.float64)
    ids = torch.randint(0, 5, (2, T))
    m = attention_map(3 * q, k, mask=causal & alibi(H) if biased else causal)
    found = [scores(x, ids, near=near) for x in (m, uniform(m))]
    for text in range(2):
        for row in describe([m[text : text + 1]], ids[text : text + 1], near=near):
            for name in HeadScores._fields:
                expected = row.scores[name][:2] if name in row.scores else (math.nan, math.nan)
                numbers = [getattr(x, name)[text, row.head].item() for x in found]
                assert numbers == pytest.approx(expected, nan_ok=True), name
