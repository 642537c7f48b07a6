"""Predictions and contributions on the page: what is likely, what changed, and what adds up to a logit."""

import functools
import json
import math

import pytest
import torch

import regard
from regard.gpt import GPT
from regard.recorder import Predictions
from regard.show.data import predictions
from regard.show.data.contents import Contents
from regard.show.data.contributions import telling_position
from regard.show.data.cuts import HeadCut
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.text_maps import EditedRun
from regard.show.saved.pack import pack
from tests.captures import captured, predicted
from tests.show.saved.test_pack import opened

TEXT = (
    "Captain Reed sailed from Lisbon. Mary Ellis wrote to Captain Reed, and Captain Reed sailed from Lisbon."
)
VALUES = Quantity("values")


@functools.cache
def read():
    return regard.capture(GPT.from_pretrained("default"), text=TEXT, contributions=True, predictions=True)


def test_a_capture_has_the_shades_that_were_recorded():
    assert Contents(captured()).meta["texts"][0]["shades"] == ["weights"]
    assert Contents(captured()).meta["texts"][0]["predicted"] is None
    assert Contents(read())[0].shades() == ["weights", "values", "logit"]
    with pytest.raises(KeyError, match="shade: expected one of weights, got 'values'"):
        Contents(captured())[0].tile(0, 1, 0, 0, 0, quantity=VALUES)


def test_a_cut_head_contributes_nothing():
    contents = Contents(read(), start=None)
    run = contents.add(read(), "cut", EditedRun(0, (HeadCut("4", 2),)))
    for quantity in (VALUES, Quantity("logit")):
        nothing = contents[run].factors("4", quantity).abs().sum(-1) == 0
        assert nothing.tolist() == [[False, False, True, False]]
        assert bool(contents[0].factors("4", quantity).abs().sum(-1).all())


def test_value_weighted_tiles_rows_and_columns_are_those_of_the_library():
    contents, m = Contents(read()), read().value_weighted(4)
    dense = m.to_dense()[0, 2]
    found = contents[0].tile(4, 2, 0, 0, 0, quantity=VALUES)
    torch.testing.assert_close(found.mass, dense, atol=1e-5, rtol=1e-5)
    assert set(found.max.unique().tolist()) == {-1.0, 0.0}
    torch.testing.assert_close(contents[0].row(4, 2, 9, VALUES), dense[9], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(contents[0].column(4, 2, 3, VALUES), dense[:, 3], atol=1e-5, rtol=1e-5)
    mean = m.to_dense()[0, :, 9].mean(0)
    torch.testing.assert_close(contents[0].row(4, "mean", 9, VALUES), mean, atol=1e-5, rtol=1e-5)


def test_an_attribution_adds_up_to_the_logit_of_the_model():
    contents, seen = Contents(read()), read()
    with torch.no_grad():
        logits = GPT.from_pretrained("default")(seen.ids)[0]
    position = seen.ids.shape[1] - 3
    found = contents[0].attribution(Quantity("logit", position=position))
    assert found["token"]["id"] == int(logits[position].argmax())
    assert found["logit"] == pytest.approx(float(logits[position].max()), abs=1e-3)
    heads = sum(map(sum, found["heads"].values()))
    assert found["embedding"] + heads + sum(found["mlps"].values()) + found["rest"] == pytest.approx(
        found["logit"], abs=1e-3
    )
    assert set(found["heads"]) == set(found["mlps"]) == {str(layer.key) for layer in seen.layers}
    # The row of the position, over all heads, is what the heads add.
    quantity = Quantity("logit", position=position)
    row = contents[0].row("mean", "mean", position, quantity)
    assert float(row.sum()) == pytest.approx(heads, abs=1e-3)
    by_words = contents[0].row("mean", "mean", position, quantity._replace(units="words"))
    assert len(by_words) < len(row)
    assert float(by_words.sum()) == pytest.approx(heads, abs=1e-3)  # of the one query, not of its word
    of_head = contents[0].row(5, 3, position, quantity)
    assert float(of_head.sum()) == pytest.approx(found["heads"]["5"][3], abs=1e-4)


def test_another_token_and_what_does_not_exist():
    contents = Contents(read())
    likeliest = contents[0].attribution(Quantity("logit", position=5))["candidates"]
    second = contents[0].attribution(Quantity("logit", position=5, token=likeliest[1]["id"]))
    assert second["token"] == likeliest[1]
    assert second["logit"] < contents[0].attribution(Quantity("logit", position=5))["logit"]
    with pytest.raises(KeyError, match="position: expected a number from 0 to"):
        contents[0].attribution(Quantity("logit", position=500))
    unlikely = next(t for t in range(100) if t not in {one["id"] for one in likeliest})
    added = contents[0].attribution(Quantity("logit", position=5, token=unlikely))
    assert added["token"]["probability"] is None
    assert added["candidates"] == [*likeliest, added["token"]]
    assert added["logit"] < second["logit"]
    with pytest.raises(KeyError, match="token: expected an id from 0 to"):
        contents[0].attribution(Quantity("logit", position=5, token=10**6))
    with pytest.raises(KeyError, match="shade: expected one of weights, got 'logit'"):
        Contents(captured())[0].attribution(Quantity())


def test_the_page_begins_with_a_prediction_that_is_worth_explaining():
    seen = read()
    position = telling_position(seen, 0)
    assert any(map(str.isalpha, seen.tokens[0][position + 1]))
    later = seen.predictions.losses[0, len(seen.tokens[0]) // 2 :]
    assert float(seen.predictions.losses[0, position]) < float(later.median())
    silent = regard.capture(
        GPT.from_pretrained("default"), text="1 2 3 4", contributions=True, predictions=True
    )
    assert telling_position(silent, 0) == silent.layers[0].shape[2] - 1


def of_losses(losses):
    """Predictions of one text of which only the losses matter."""
    T = len(losses) + 1
    table = torch.tensor([losses])
    return Predictions(
        torch.zeros(1, T, 1).long(), torch.ones(1, T, 1), table, torch.ones(1, T - 1).long(), {}
    )


def test_a_position_has_its_likeliest_tokens_and_the_one_that_follows():
    seen = predicted(captured(20))
    found = Contents(seen)[0].prediction(4)
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


def test_the_summary_is_json_also_where_every_loss_is_padding():
    seen = predicted(captured(6))
    summary = Contents(seen).meta["texts"][0]["predictions"]
    assert summary == {"loss": pytest.approx(seen.predictions.loss.item()), "tokens": 5, "likeliest": 10}
    assert predictions.summary(of_losses([math.nan]), 0) == {"loss": None, "tokens": 0, "likeliest": 1}
    assert Contents(captured(6)).meta["texts"][0]["predictions"] is None


def test_changes_are_of_probability_and_name_the_token_that_is_predicted():
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


def test_a_saved_page_holds_them():
    seen = predicted(captured(12))
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
