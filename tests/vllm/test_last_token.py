"""Requests that ask for the shares of their last token: equal to a capture of the same request."""

from types import SimpleNamespace

import pytest
import torch

import regard
from regard.vllm import engine_capture
from regard.vllm.engine_capture import EngineCapture
from regard.vllm.last_token import read_mark
from tests.vllm.paged_engine import HEADS, two_layers

SPANS = {"begin": [0, 3], "middle": [2, 9]}


def run(folder, marks, length=12, **options):
    """Run one text as often as there are marks, 9 tokens of prompt and the rest one by one.

    Returns what was said at the end, and what was collected while the requests ran.
    """
    engine = two_layers()
    capture = EngineCapture(engine.runner, engine.modules, folder, **options)
    capture.attach()
    collected = {}
    for i, mark in enumerate(marks):
        name = f"{i}-0123abcd"
        text = engine.add(name, 9, length)
        text.sampling_params = SimpleNamespace(extra_args=None if mark is None else {"regard": mark})
        for first, stop in [(0, 7), (7, 9), *((n, n + 1) for n in range(9, length))]:
            engine.step((name, first, stop))
        collected |= capture.collect()
        engine.end(name)
        capture.collect()
    return capture.finish(), collected


@pytest.mark.parametrize("length", [9, 12])
def test_the_shares_are_those_of_a_capture(tmp_path, length):
    answers, collected = run(tmp_path, [None, {"spans": SPANS}], length)
    seen, last = regard.load(answers["0"]["folder"]), collected["1"]
    assert (last["position"], last["rows"], last["certified"]) == (length - 1, 2 + length - 9, True)
    for layer in seen.layers:
        row = layer.map.to_dense()[0, :, -1]
        shares = last["layers"][str(layer.key)]
        assert shares["heads"] == list(range(HEADS))
        expected = {name: row[:, first:stop].sum(1) for name, (first, stop) in SPANS.items()}
        for name, share in {**shares["spans"], "sink": shares["sink"]}.items():
            torch.testing.assert_close(torch.tensor(share), expected.get(name, row[:, 0]))
        if layer.map.sinks is not None:
            torch.testing.assert_close(torch.tensor(shares["sink_logit"]), 1 - row.sum(1))
        if length == 9:
            assert shares["lookback"] is None
        else:
            before, after = row[:, :9].sum(1) / 9, row[:, 9:].sum(1) / (length - 9)
            torch.testing.assert_close(torch.tensor(shares["lookback"]), before / (before + after))


def test_only_requests_that_ask_are_looked_at(tmp_path):
    marks = [None, "capture", "last token", "nonsense"]
    answers, collected = run(tmp_path, marks, marked_only=True)
    assert set(answers) == {"1", "3"}
    assert set(collected) == {"2"}
    assert answers["1"]["certified"]
    assert answers["3"]["refused"].startswith("extra_args: expected 'regard' to be")
    answers, collected = run(None, [None, "last token"])
    assert answers == {}
    assert set(collected) == {"1"}
    assert "start was given no folder" in run(None, ["capture"])[0]["0"]["refused"]


def test_a_wrong_reading_is_not_certified(monkeypatch):
    read = engine_capture.read_settings
    monkeypatch.setattr(engine_capture, "read_settings", lambda layer: read(layer)._replace(scale=0.5))
    assert not run(None, ["last token"])[1]["0"]["certified"]


@pytest.mark.parametrize("mark", ["all", {}, {"spans": [1]}, {"spans": {"a": [3, 3]}}, {"spans": {}, "x": 1}])
def test_a_mark_that_makes_no_sense_is_refused(mark):
    with pytest.raises(ValueError, match="extra_args: expected 'regard' to be"):
        read_mark({"regard": mark})
    assert read_mark({"other": mark}) is None
