"""Eviction loss has one definition: by loops, and the same of rows, of a map, and in generation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.gpt import GPT, Config
from regard.gpt.cache_demo import compare_with_and_without_cache
from regard.heads import describe
from regard.heads.measures.eviction import eviction_loss
from regard.show.data.eviction import layer_eviction


@given(
    S=st.integers(1, 12),
    first_key=st.integers(0, 5),
    sinks=st.integers(0, 8),
    windows=st.lists(st.integers(1, 15), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_it_is_the_mass_on_keys_that_are_neither_first_nor_latest(
    S: int, first_key: int, sinks: int, windows: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    weights = torch.rand(2, 3, S, dtype=torch.float64)
    positions = torch.randint(first_key, first_key + S, (3,))
    loss = eviction_loss(weights, positions, torch.tensor(windows), sinks, first_key)
    assert loss.shape == (2, 3, len(windows))
    for h in range(2):
        for i, position in enumerate(positions.tolist()):
            for w, window in enumerate(windows):
                evicted = [
                    j for j in range(S) if first_key + j >= sinks and first_key + j <= position - window
                ]
                expected = sum(weights[h, i, j].item() for j in evicted)
                assert loss[h, i, w].item() == pytest.approx(expected, abs=1e-12)


def test_head_scores_the_cache_view_and_generation_agree() -> None:
    torch.manual_seed(0)
    gpt = GPT(
        Config(vocab_size=64, context_length=48, num_layers=2, num_heads=4, d_model=32, num_kv_heads=2)
    ).eval()
    with torch.no_grad():
        for block in gpt.blocks:
            block.attention.qkv.weight *= 20
    prompt, window, sinks = torch.randint(0, 64, (30,)).tolist(), 8, 2
    steps = list(compare_with_and_without_cache(gpt, prompt, tokens=6, window=window, sinks=sinks))
    ids = torch.tensor([prompt + [step.token_id for step in steps[:-1]]])
    maps = gpt.maps(ids)
    table = describe(maps, ids, policy=(sinks, window))
    for layer, m in enumerate(maps):
        view = layer_eviction(m)
        by_view = [lost[view["windows"].index(window)][view["sinks"].index(sinks)] for lost in view["lost"]]
        A = m.to_dense()[0]  # (H, T, T)
        T = A.shape[1]
        losing = torch.arange(window + sinks, T)  # the queries that lose a key
        of_rows = eviction_loss(A, torch.arange(T), torch.tensor([window]), sinks)[..., 0]
        for head in range(4):
            expected = of_rows[head, losing].mean().item()
            assert table[layer, head].scores["eviction"].value == pytest.approx(expected, abs=1e-5)
            assert by_view[head] == pytest.approx(expected, abs=1e-5)
        for step in steps:  # each is the row of its newest token
            newest = of_rows[:, step.position - 1]
            assert step.lost[layer] == pytest.approx(newest.tolist(), abs=1e-4)


def test_a_window_as_long_as_the_text_loses_nothing() -> None:
    m = regard.attention_map(torch.randn(1, 2, 20, 4), torch.randn(1, 2, 20, 4), mask=regard.causal)
    loss = eviction_loss(m.to_dense(), torch.arange(20), torch.tensor([20, 40]), 0)
    assert loss.shape == (1, 2, 20, 2)
    assert not loss.any()
