"""Predictions as the page shows them: one position, and what changed between two runs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from regard.recorder import Predictions
from regard.show.data import predictions
from regard.show.data.contents import Contents
from regard.show.saved.pack import pack
from tests.captures import captured, predicted
from tests.show.saved.test_pack import opened


def of_losses(losses: list[float]) -> Predictions:
    """Predictions of one text of which only the losses matter."""
    T = len(losses) + 1
    table = torch.tensor([losses])
    return Predictions(
        torch.zeros(1, T, 1).long(), torch.ones(1, T, 1), table, torch.ones(1, T - 1).long(), {}
    )


def test_a_position_has_its_likeliest_tokens_and_the_one_that_follows() -> None:
    seen = predicted(captured(20))
    found = Contents(seen)[0].prediction(4)
    assert seen.predictions is not None
    assert len(found["likeliest"]) == 10
    assert [item["id"] for item in found["likeliest"]] == seen.predictions.likeliest[0, 4].tolist()
    assert found["likeliest"][0]["token"] == f" t{found['likeliest'][0]['id']}"
    assert found["next"]["token"] == " t5"
    assert found["next"]["loss"] == pytest.approx(seen.predictions.losses[0, 4].item())
    assert found["next"]["probability"] == pytest.approx(math.exp(-found["next"]["loss"]))
    assert Contents(seen)[0].prediction(19)["next"] is None
    for position in (-1, 20):
        with pytest.raises(KeyError, match="position: expected a number from 0 to 19"):
            Contents(seen)[0].prediction(position)
    with pytest.raises(KeyError, match="so it has none"):
        Contents(captured(20))[0].prediction(4)


def test_the_summary_is_json_also_where_every_loss_is_padding() -> None:
    seen = predicted(captured(6))
    assert seen.predictions is not None
    summary = Contents(seen).meta["texts"][0]["predictions"]
    assert summary == {"loss": pytest.approx(seen.predictions.loss.item()), "tokens": 5, "likeliest": 10}
    assert predictions.summary(of_losses([math.nan]), 0) == {"loss": None, "tokens": 0, "likeliest": 1}
    assert Contents(captured(6)).meta["texts"][0]["predictions"] is None


def test_changes_are_of_probability_and_name_the_token_that_is_predicted() -> None:
    before = of_losses([-math.log(p) for p in (0.5, 0.9, 0.001, 0.25)] + [math.nan])
    after = of_losses([-math.log(p) for p in (0.6, 0.1, 0.5, 0.25)] + [1.0])
    found = json.loads(json.dumps(predictions.changes(before, after, 0), allow_nan=False))
    assert [item["position"] for item in found["most"]] == [2, 3, 1]  # the unchanged one is left out
    assert found["most"][0] == {
        "position": 2,
        "before": pytest.approx(0.9, rel=1e-5),
        "after": pytest.approx(0.1, rel=1e-5),
    }
    assert found["before"] == pytest.approx(-sum(map(math.log, (0.5, 0.9, 0.001, 0.25))) / 4, rel=1e-5)
    assert found["after"] == pytest.approx(-sum(map(math.log, (0.6, 0.1, 0.5, 0.25))) / 4, rel=1e-5)


def test_a_saved_page_holds_them() -> None:
    seen = predicted(captured(12))
    assert seen.predictions is not None
    description, arrays = opened(pack(Contents([seen, captured(5)])).blocks)
    block = arrays("predictions-0")
    assert block["ids"][block["places"]].tolist() == seen.predictions.likeliest[0].tolist()
    torch.testing.assert_close(
        torch.from_numpy(block["probabilities"].copy()), seen.predictions.probabilities[0], rtol=1e-4, atol=0
    )
    assert block["losses"].tolist() == seen.predictions.losses[0].tolist()
    assert block["ranks"].tolist() == seen.predictions.ranks[0].tolist()
    assert description["words"][0] == [f" t{n}" for n in block["ids"]]
    assert description["words"][1] == []
    assert "predictions-1" not in description["blocks"]
