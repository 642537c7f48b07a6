"""The small example on the page is the one that the stages compute."""

from __future__ import annotations

import json

import pytest
import torch

from regard.show.data.stage_example import build_example
from regard.stages.example import X, multi_head
from regard.stages.simplified import simplified_self_attention


def test_it_is_plain_data_of_five_stages() -> None:
    found = build_example()
    json.dumps(found, allow_nan=False)
    names = ["1 Simplified", "2 Trainable", "3 Scaled", "4 Causal", "6 Two heads"]
    assert [stage["name"] for stage in found["stages"]] == names
    assert [len(stage["heads"]) for stage in found["stages"]] == [1, 1, 1, 1, 2]
    assert found["x"][1] == [0.73, 0.39, 0.81]


def test_every_row_is_the_stage_s_own() -> None:
    simplified, trainable, scaled, causal, two = build_example()["stages"]
    attn = simplified_self_attention(X)[1]
    for row, work in enumerate(simplified["heads"][0]):
        assert [key["weight"] for key in work["keys"]] == pytest.approx(attn[row].tolist(), abs=1e-6)
    work = trainable["heads"][0][1]
    assert work["q"] == pytest.approx([0.644, 1.109], abs=1e-6)
    assert [key["score"] for key in work["keys"]][:2] == pytest.approx([1.1171, 1.1993], abs=5e-5)
    assert scaled["heads"][0][1]["output"] == pytest.approx([0.480304, 0.454230], abs=1e-6)
    assert causal["heads"][0][2]["output"] == pytest.approx([0.553939, 0.544996], abs=1e-6)
    with torch.no_grad():
        weights = multi_head(2).attention(X)[1]
    for h in range(2):
        for row, work in enumerate(two["heads"][h]):
            assert [key["weight"] for key in work["keys"]] == pytest.approx(
                weights[h, row].tolist(), abs=1e-6
            )
    assert all(stage["apart"] < 1e-6 for stage in (simplified, trainable, scaled, causal, two))
