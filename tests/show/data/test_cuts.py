"""Cuts: what a request may ask to be cut, and edited runs among the texts."""

import gc
import json
import weakref

import pytest

from regard.show.data.contents import Contents
from regard.show.data.cuts import EdgeCut, HeadCut, parse_cuts
from regard.show.data.text_maps import EditedRun
from tests.captures import captured, predicted

HEAD = {"kind": "head", "layer": "1", "head": 2}
EDGES = {"kind": "edges", "layer": "0", "head": None, "queries": [3, 9], "keys": [0, 10]}


def test_heads_and_edges_are_read_and_written():
    cuts = parse_cuts([HEAD, EDGES, {**EDGES, "head": 3}, HEAD], captured(10))
    assert cuts == [
        HeadCut("1", 2),
        EdgeCut("0", None, (3, 9), (0, 10)),
        EdgeCut("0", 3, (3, 9), (0, 10)),
    ]
    assert [json.loads(json.dumps(cut.to_data())) for cut in cuts[:2]] == [HEAD, EDGES]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "cuts: expected a list of 1 to 64 cuts, got NoneType"),
        ([], "got 0 of them"),
        ([HEAD] * 65, "got 65 of them"),
        (["head"], "cuts: expected each to be an object"),
        ([{**HEAD, "kind": "layer"}], "cuts: expected each to be an object"),
        ([{**HEAD, "layer": 1}], "layer: expected the key of a layer as text, got int"),
        ([{**HEAD, "layer": "7"}], "layer: expected one of those captured"),
        ([{**HEAD, "head": None}], "head: expected a whole number from 0 to 3, got None"),
        ([{**HEAD, "head": True}], "head: expected a whole number"),
        ([{**HEAD, "head": 4}], "head: expected a whole number from 0 to 3, got 4"),
        ([{**EDGES, "queries": [3]}], "queries: expected a span"),
        ([{**EDGES, "queries": "39"}], "queries: expected a span"),
        ([{**EDGES, "queries": [3, 3]}], "queries: expected a whole number from 4 to 10, got 3"),
        ([{**EDGES, "keys": [-1, 3]}], "keys: expected a whole number from 0 to 9, got -1"),
        ([{**EDGES, "keys": [0, 11]}], "keys: expected a whole number from 1 to 10, got 11"),
        ([{**EDGES, "keys": [0.0, 1]}], "keys: expected a whole number"),
    ],
)
def test_what_is_wrong_is_said(data, message):
    with pytest.raises((ValueError, KeyError), match=message):
        parse_cuts(data, captured(10))


def test_a_head_that_was_not_captured_cannot_be_cut():
    seen = captured(10)
    seen.layers[1].heads = (0, 1, 4, 5)
    with pytest.raises(KeyError, match=r"head: expected one of \[0, 1, 4, 5\], got 2"):
        parse_cuts([HEAD], seen)


def test_an_edited_run_says_what_it_is_of_and_takes_the_place_of_another():
    contents = Contents([predicted(captured(10)), captured(10, seed=3)])
    first = contents.add(predicted(captured(10), seed=5), "a", EditedRun(0, (HeadCut("1", 2),)))
    text = json.loads(json.dumps(contents.meta))["texts"][first]
    assert (first, text["edited"]["text"], text["edited"]["cuts"]) == (2, 0, [HEAD])
    assert text["edited"]["changes"]["before"] != text["edited"]["changes"]["after"]
    contents[first].thumbnail(0), contents[first].heads(), contents[first].tile(0, 0, 0, 0, 0)
    other = contents.add(captured(10), "b", EditedRun(1, (HeadCut("0", 0),)))
    assert contents.meta["texts"][other]["edited"]["changes"] is None  # the texts have no predictions
    held = weakref.ref(contents.texts[first].layers[0])
    second = contents.add(captured(10), "a", EditedRun(0, (HeadCut("1", 3),)))
    assert (second, contents.edited.keys()) == (4, {other, second})
    assert [text["removed"] for text in contents.meta["texts"]] == [False, False, True, False, False]
    gc.collect()
    assert held() is None  # what was captured is freed, and nothing that was computed from it is kept
    with pytest.raises(KeyError, match="number 2 was removed or replaced: reload the page"):
        contents[first].tile(0, 0, 0, 0, 0)
    assert contents.remove(second) == 0
    with pytest.raises(KeyError, match="removed or replaced"):
        contents.remove(second)
    assert contents.remove(1) == 0
    assert (contents.removed, contents.edited) == ({1, first, other, second}, {})
    with pytest.raises(ValueError, match="expected another text beside the one to remove, got the last one"):
        contents.remove(0)
