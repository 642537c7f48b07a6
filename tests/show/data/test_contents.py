"""The data of the page: meta, rows, thumbnails, sinks, steps, titles, the token shown first, and surveys."""

import base64
import json
import re
import zlib

import pytest
import torch

import regard
from regard.recorder import Capture, Layer
from regard.show.data import contents as contents_module
from regard.show.data.contents import Contents
from regard.show.data.shown_text import telling_query
from regard.show.data.survey_rows import describe_survey_head
from regard.show.data.titles import title_of_text, title_of_tokens
from regard.show.saved.bundle import write
from regard.show.server.answers import Answers
from regard.show.server.limits import RefusedError
from tests.captures import HOSTILE, captured, surveyed


def test_the_meta_is_json_whatever_the_tokens():
    tokens = [*HOSTILE, "\ud800", "‮gnirts", "x" * 10_000, ""]
    contents = Contents(captured(len(tokens), tokens=tokens, boundary=3))
    meta = json.loads(json.dumps(contents.meta, allow_nan=False))
    text = meta["texts"][0]
    assert text["tokens"] == tokens
    assert text["boundary"] == 3
    layer = text["layers"][1]
    assert (layer["key"], layer["heads"], layer["kv_heads"], layer["group"]) == ("1", [0, 1, 2, 3], 2, 2)
    assert layer["evidence"]["certified"] is True
    assert layer["mask"] == "causal"


def test_the_meta_holds_the_constants_and_the_words_that_the_page_shares_with_python():
    meta = json.loads(json.dumps(Contents(captured()).meta))
    shared = ("tile", "thumb", "strongest")
    assert [meta[name] for name in shared] == [256, 64, 12]
    assert meta["scores"][0] == {
        "name": "previous_token",
        "title": "previous token",
        "about": "Attention on the token before the query.",
    }
    scored = {name for row in Contents(captured())[0].heads() for name in row["scores"]}
    assert scored <= {score["name"] for score in meta["scores"]}


@pytest.mark.parametrize(
    ("mask", "words", "bias"),
    [
        (regard.causal & regard.window(8), "causal & window(8)", ""),
        (regard.causal & regard.alibi(4), "causal", "alibi(4)"),
        (regard.alibi(4), "full", "alibi(4)"),
        (regard.full, "full", ""),
    ],
)
def test_a_bias_of_positions_is_not_called_a_mask(mask, words, bias):
    layer = Contents(captured(20, mask=mask), start=None).meta["texts"][0]["layers"][0]
    assert (layer["mask"], layer["bias"]) == (words, bias)


def test_the_start_is_the_most_telling_head_however_large_the_capture(monkeypatch):
    T = 40
    seen = captured(T, layers=3)
    assert Contents(seen, start=None).meta["start"] is None
    assert Contents(seen, start=("1", 2)).meta["start"] == {"layer": "1", "head": 2}
    previous = 30 * torch.eye(T).roll(1, 0)
    previous[0] = 0
    q = torch.stack([0 * previous, previous])[None]
    m = regard.attention_map(q, torch.eye(T).expand(1, 2, T, T), mask=regard.causal, scale=1.0)
    seen.layers[2] = Layer(2, "h.2", "", m, seen.layers[2].evidence, (0, 7))
    assert Contents(seen).meta["start"] == {"layer": "2", "head": 7}
    monkeypatch.setattr(contents_module, "MOST_SAMPLED", seen.nbytes)  # every other layer is read
    assert Contents(seen).start == ("2", 7)


def test_nothing_to_show_is_said():
    with pytest.raises(ValueError, match="without layers"):
        Contents(Capture())
    with pytest.raises(ValueError, match="at least one"):
        Contents([])
    with pytest.raises(ValueError, match="batch_index: expected a number from 0 to 0"):
        Contents(captured(), batch_index=1)


def test_another_entry_of_a_batch():
    q = torch.randn(2, 2, 30, 4)
    m = regard.attention_map(q, q, mask=regard.causal & regard.padding([30, 20]))
    base = captured().layers[0]
    layer = type(base)(0, "h.0", "", m, base.evidence, (4, 6), torch.randn(2, 2, 30, 3))
    contents = Contents(Capture([layer], "m", tokens=[["a"] * 30, ["b"] * 30]), batch_index=1)
    assert contents.meta["texts"][0]["tokens"][0] == "b"
    torch.testing.assert_close(contents[0].row(0, 6, 29), m.to_dense()[1, 1, 29])
    assert (contents[0].thumbnail(0).thumbs[:, :, -16:] == 0).all()  # padding is not to be seen
    assert contents[0].steps(0, 6, 5)["shapes"]["E"] == 3


@pytest.mark.parametrize("T", [5, 64, 100, 700])
def test_small_pictures_show_mass_and_mask(T):
    seen = captured(T, layers=1)
    thumbs, sinks, _ = Contents(seen)[0].thumbnail(0)
    assert thumbs.shape == (4, 64, 64)
    assert (thumbs[:, 0, 40] == 0).all()  # above the diagonal
    assert (thumbs[:, 63] > 0).all()  # the last query sees all
    if T >= 64:
        mass = seen[0].pool(64, 64)[0]
        shown = torch.from_numpy(thumbs).float().sub(1).div(254).clamp(min=0).square()
        assert float((shown - mass).abs().max()) < 0.01
    seen_by = torch.arange(T, 0, -1)
    share = (seen[0].to_dense()[0].sum(1) / seen_by).where(seen_by * 2 >= T, 0)  # (H, S)
    assert [sink["key"] for sink in sinks] == share.argmax(-1).tolist()
    assert [sink["share"] for sink in sinks] == pytest.approx(share.amax(-1).tolist(), rel=1e-3)


def test_a_long_text_is_looked_at_in_part():
    seen = captured(3000, layers=1, heads=2, kv_heads=1)
    found = Contents(seen)[0].thumbnail(0)
    assert found.queries == 1024
    mass = seen[0].pool(64, 64)[0]
    shown = torch.from_numpy(found.thumbs).float().sub(1).div(254).clamp(min=0).square()
    assert float((shown - mass).abs().mean()) < 0.003


def test_the_steps_of_a_row_lead_to_its_output():
    seen = captured(40)
    contents = Contents(seen)
    steps = contents[0].steps(1, 3, 25)
    layer = seen.layers[1]
    m, values = layer.map, layer.values
    torch.testing.assert_close(torch.tensor(steps["output"]), (m @ values)[0, 3, 25], atol=1e-5, rtol=1e-4)
    assert steps["sum"] == pytest.approx(1, abs=1e-5)
    assert steps["visible"] == 26
    assert [key["key"] for key in steps["keys"]] == sorted({key["key"] for key in steps["keys"]})
    assert {0, 25} <= {key["key"] for key in steps["keys"]}
    for key in steps["keys"]:
        assert key["weight"] == pytest.approx(float(m[0, 3, 25, key["key"]]), rel=1e-4, abs=1e-9)
        dot = sum(a * b for a, b in zip(steps["q"], key["k"], strict=True))
        assert key["score"] == pytest.approx(dot)
        assert key["scaled"] == pytest.approx(dot * m.scale)
    json.dumps(steps, allow_nan=False)


WORDS = ["<s>", " The", " cat", "\n", " sat", ".", " The", " cat", "\n", "<s>"]


def head_with_edge(query, key):
    """A head whose queries attend to the first token, but for one that attends to a key."""
    T = len(WORDS)
    scores = torch.zeros(T, T)
    scores[:, 0] = 8.0
    scores[query, key] = 14.0
    return regard.attention_map(scores[None, None], torch.eye(T)[None, None], mask=regard.causal, scale=1.0)


@pytest.mark.parametrize(("query", "key"), [(8, 2), (9, 2), (5, 2)])
def test_line_ends_start_tokens_and_signs_are_never_telling(query, key):
    assert WORDS[telling_query(head_with_edge(query, key), WORDS, WORDS)].strip().isalpha()


def test_the_meta_names_the_telling_query_of_each_text():
    tokens = [".", "\n"] * 15
    tokens[20], tokens[11] = " word", " other"
    contents = Contents([captured(30, tokens=tokens), captured(30)], start=("1", 2))
    assert contents.meta["texts"][0]["telling"] == 20
    assert 0 <= contents.meta["texts"][1]["telling"] < 30
    contents.remove(1)
    assert contents.meta["texts"][1]["telling"] is None


def test_titles_are_first_words_without_start_tokens():
    assert title_of_tokens(["<|endoftext|>", "The", "\n keeper", " of"]) == "The keeper of"
    assert title_of_tokens(["<s>", "世¹⁄₂", "世²⁄₂", "界"]) == "世界"
    assert title_of_tokens(["<s>"]) == ""
    assert len(title_of_text("x" * 10_000)) == 48
    titles = [text["title"] for text in Contents([captured(3, tokens=["<s>", "</s>", "<s>"])]).meta["texts"]]
    assert titles == ["text 1"]


def test_an_example_has_its_query_and_the_weights_of_its_keys():
    seen = captured()
    result = surveyed(seen)
    head = describe_survey_head(result, "1", 2)
    (example,) = head["examples"]
    query = example["positions"][example["query"]]
    weights = seen.layers[1].map[0, 2, query]
    assert example["weight"] == pytest.approx(float(weights[1:].max()), rel=1e-3)
    for place, weight in example["keys"]:
        assert weight == pytest.approx(float(weights[example["positions"][place]]), rel=1e-3)
    assert example["tokens"] == [result.word(int(seen.ids[0, p])) for p in example["positions"]]
    assert sum(one["share"] for one in head["distances"]) == pytest.approx(1, abs=1e-3)
    assert 0 < len(head["queries"]) <= 10


def test_the_server_and_the_file_say_the_same(tmp_path):
    seen = captured()
    contents = Contents(seen, survey=surveyed(seen), start=None)
    answer = Answers(contents).compute("survey_head", {"layer": "1", "head": "2"})
    page = write(contents, tmp_path / "page.html").read_text()
    block = re.search(r'id="survey">([^<]*)<', page)
    saved = json.loads(zlib.decompress(base64.b64decode(block[1])))
    assert saved["1/2"] == json.loads(answer.encode())
    with pytest.raises(RefusedError, match="expected a layer and a head of the survey"):
        Answers(contents).compute("survey_head", {"layer": "1", "head": "9"})
    with pytest.raises(RefusedError, match="shows no survey"):
        Answers(Contents(seen)).compute("survey_head", {"layer": "1", "head": "2"})


@pytest.mark.parametrize("T", [7, 30, 200])
@pytest.mark.parametrize("mask", [regard.causal, regard.full, regard.causal & regard.window(24)], ids=str)
def test_heads_have_the_same_sink_in_every_view(T, mask):
    seen = captured(T, mask=mask, seed=T)
    contents = Contents(seen)
    for page_row, row in zip(contents[0].heads(), seen.heads(), strict=True):
        layer = seen.layer(row.key)
        on_map = contents[0].thumbnail(row.key).sinks[layer.heads.index(row.head)]
        assert page_row["sink_key"] == row.sink_key == on_map["key"], row.place
        assert on_map["share"] == pytest.approx(row.scores["sink"].value, abs=1e-4)
