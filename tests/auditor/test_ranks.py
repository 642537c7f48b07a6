"""Models that two processes run together: one verdict, the same on both, with the right name first."""

import json

import pytest
import torch

import regard
from tests import ranks
from tests.auditor.ranks_program import CASES, IDS
from tests.auditor.small_models import small_model, tokens

pytest.importorskip("transformers.distributed.tensor_parallel")

WRONG = {
    "torch, Mistral (accelerate#4177)": "window-ignored",
    "torch, Gemma 3 (accelerate#4177)": "window-ignored",
    "torch, Llama, documents": "documents-leak",
    "ring, Mistral without a window": "window-ignored",
    "ring, packed, ignored (axolotl#3608)": "documents-leak",
    "ring, not causal": "future-seen",
    "a ring by hand, packed, ignored": "documents-leak",
    "apart": "ranks-apart",
    "gathered keys without a window": "window-ignored",
    "tensor parallel, with a cache": "documents-leak",
    "tensor parallel, a head that sees the future": "future-seen",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two ranks have written: the processes are started once for all tests."""
    folder = tmp_path_factory.mktemp("audited")
    with ranks.started("tests.auditor.ranks_program", 2, folder) as processes:
        errors = [process.communicate(timeout=ranks.LIMIT)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors
    return folder


@pytest.fixture(scope="module")
def verdicts(folder):
    return [json.loads((folder / f"verdicts-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_every_rank_returns_the_verdict_of_all(name, verdicts):
    first, second = (of_rank[name] for of_rank in verdicts)
    assert first["report"] == second["report"]
    names = [diagnosis["name"] for diagnosis in first["diagnoses"]]
    assert (first["verdict"], names[:1]) == (("wrong", [WRONG[name]]) if name in WRONG else ("right", []))
    assert all(layer["certified"] for layer in first["layers"])
    # Inside and outside agree wherever both could be asked.
    assert all(None in (x["inside"], x["outside"]) or x["inside"] == x["outside"] for x in first["answers"])
    assert first["outside"]["runs"] <= 8


def test_the_cells_of_two_ranks_are_those_of_one_process(verdicts):
    found = verdicts[0]["ring, Mistral without a window"]["layers"][0]["wrong"]["window"]
    whole = regard.audit(small_model("Llama"), IDS, expect=regard.causal & regard.window(4), outside=False)
    cells = whole.layers[0].wrong["window"]
    assert (found["cells"], found["first"]) == (cells.number, list(cells.first or ()))


def test_the_heads_of_two_ranks_have_the_numbers_of_the_model(verdicts):
    shares = verdicts[0]["tensor parallel, a head that sees the future"]["layers"][0]["shares"]["future"]
    assert shares[:2] == [0.0, 0.0]
    assert min(shares[2:]) > 0.05


def test_it_says_that_ranks_hold_parts_of_the_text(verdicts):
    assert (
        "2 ranks hold parts of each text, rank 0 8 of its tokens"
        in verdicts[0]["ring, packed"]["assumptions"]
    )
    assert "spread over several ranks" in verdicts[1]["ring, packed, ignored (axolotl#3608)"]["report"]


def test_positions_that_nothing_tells_are_asked_for_on_every_rank(folder):
    for rank in range(2):
        said = (folder / f"refusal-{rank}.txt").read_text()
        assert said.startswith(
            "rows: expected the positions of each rank's tokens among the 16 of a whole text"
        )


def test_ranks_that_gather_their_weights_run_equally_often(folder):
    """Otherwise they would wait for each other: a packed batch asks more questions than a plain one."""
    packed, plain = (json.loads((folder / f"sharded-{rank}.json").read_text()) for rank in range(2))
    assert (packed["verdict"], plain["verdict"]) == ("right", "right")
    assert packed["outside"]["runs"] > plain["outside"]["runs"]


def test_rows_need_the_group_that_holds_the_others():
    with pytest.raises(ValueError, match="rows: expected group= beside it"):
        regard.audit(small_model("Llama"), tokens(), rows=torch.arange(12))
