"""Layers of one shape are asked for their evictions together, and get the numbers that each has alone."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import policies
from regard.policies.joined_layers import CachedLayer, join_layers
from regard.policies.measurement import measure
from regard.policies.policy import Eviction, policy_of_layer
from regard.policies.retention import measure_layers

T, BUDGETS = 60, (9, 24)
OTHERS = {
    2: {"mask": regard.causal & regard.window(40)},
    3: {"mask": regard.causal, "scale": 0.7},
    4: {"mask": regard.causal, "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
}


def draw_layers(values: bool) -> list[CachedLayer]:
    """Eight layers: 0 and 1 can be joined, then 5, 6 and "decoder.7"; the others are unlike any other."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for key in (0, 1, 2, 3, 4, 5, 6, "decoder.7"):
        q, k, v = (torch.randn(2, n, T, 16, generator=generator) for n in (4, 2, 2))
        m = regard.attention_map(q, k, **OTHERS.get(key, {"mask": regard.causal}))
        layers.append(CachedLayer(key, (0, 1, 2, 3), m, v if values else None))
    return layers


@pytest.mark.parametrize("values", [True, False])
def test_joined_layers_have_the_numbers_of_each_alone(values: bool) -> None:
    layers = draw_layers(values)
    runs = [[layer.key for layer in run.layers] for run in join_layers(layers)]
    assert runs == [[0, 1], [2], [3], [4], [5, 6, "decoder.7"]]
    chosen = [policies.streaming(), policies.h2o(), policies.snapkv(6, 3), policies.random(), policies.best()]
    measured = list(measure_layers(layers, chosen, BUDGETS, 3))
    assert [layer.key for layer, _ in measured] == [layer.key for layer in layers]
    for layer, table in measured:
        for policy, row in zip(chosen, table, strict=True):
            own = policy_of_layer(policy, layer.key)
            every = 3 if isinstance(policy, Eviction) else None
            for budget, found in zip(BUDGETS, row, strict=True):
                alone = measure(layer.map, layer.values, own, budget, every)
                assert torch.equal(found.share, alone.share)
                assert torch.equal(found.concerned, alone.concerned)
                assert (found.error is None) == (not values)
                if found.error is not None and alone.error is not None:
                    assert torch.equal(found.error, alone.error)
                assert bool((found.share[found.concerned] < 1).any())
