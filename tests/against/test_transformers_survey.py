"""A sample of the survey over Transformers' model types, and tests that the survey tells wrong from right.

All model types: `make capture-table`, or `python -m tests.against.transformers_survey`.
"""

import contextlib
import warnings

import pytest

pytest.importorskip("transformers")

import regard
from tests.against.transformers_survey import judging
from tests.against.transformers_survey import verdict as v
from tests.against.transformers_survey.cases import cases_of
from tests.against.transformers_survey.mixers import mixers
from tests.against.transformers_survey.surveying import small_model
from tests.against.transformers_survey.table import document
from tests.against.transformers_survey.weights import Weights

CAPTURE = regard.capture


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Transformers' own, while small models are built
        yield


def small_llama():
    model, inputs = small_model("llama", "LlamaModel")
    cases = {case.name: case for case in cases_of(model, inputs)}
    return model, cases, mixers(model, cases["given"])[0]


@pytest.mark.parametrize("case", ["given", "left", "right"])
def test_weights_of_the_plain_run_are_those_of_eager_attention(case):
    model, cases, _ = small_llama()
    with Weights(model).watching() as plain:
        cases[case].run(model)
    model.set_attn_implementation("eager")
    eager = cases[case].run(model, output_attentions=True).attentions
    assert [name for name, _ in plain.found] == ["layers.0.self_attn", "layers.1.self_attn"]
    for (_, ours), theirs in zip(plain.found, eager, strict=True):
        off = (ours - theirs).abs().transpose(1, 2)
        rows = cases[case].real
        assert (off if rows is None else off[rows]).max() < 1e-4


@contextlib.contextmanager
def captured_wrongly(model, wrong):
    """A capture that forgets a layer, or computes something else."""
    shift = model.register_forward_pre_hook(_other_ids, with_kwargs=True) if wrong == "output" else None
    with CAPTURE(model) as seen:
        yield seen
    if wrong == "forgets":
        del seen.layers[0]
    if wrong == "scale":
        seen.layers[1].map.q.data.mul_(1.1)  # a write that PyTorch does not count
    if wrong == "changes":
        model.set_attn_implementation("eager")
    if wrong == "raises":
        raise RecursionError("maximum recursion depth exceeded")
    if shift is not None:
        shift.remove()


def _other_ids(_, args, kwargs):
    return args, kwargs | {"input_ids": kwargs["input_ids"].flip(0)}


@pytest.mark.parametrize(
    ("wrong", "outcome"),
    [
        ("nothing", v.EQUAL),
        ("forgets", v.UNNAMED),
        ("output", v.WRONG),
        ("scale", v.WRONG),
        ("changes", v.CHANGED),
        ("raises", v.CRASH),
    ],
)
def test_a_capture_that_is_wrong_is_found_out(monkeypatch, wrong, outcome):
    model, cases, found = small_llama()
    monkeypatch.setattr(regard, "capture", lambda m: captured_wrongly(m, wrong))
    result = judging.judge(model, cases["left"], "sdpa", found)
    assert result.outcome == outcome, result.reasons


def test_the_table_counts_every_type():
    results = [
        {"type": "a", "outcome": v.EQUAL, "reasons": [], "classes": []},
        {"type": "b", "outcome": v.REFUSED, "reasons": ["refused: BModel cannot be captured"], "classes": []},
        {"type": "c", "outcome": v.NOT_BUILT, "reasons": ["ImportError: needs timm"], "classes": []},
    ]
    text = document(results)
    assert "`a`" in text
    assert "BModel cannot be captured" in text
    assert "needs timm" in text
