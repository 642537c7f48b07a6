"""What a survey found, as the page gets it: from a server, and in a saved file."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from regard.show.data.contents import Contents
from regard.show.data.survey_rows import describe_survey_head
from regard.show.saved.bundle import write
from regard.show.server.answers import Answers, Json
from regard.show.server.limits import RefusedError
from tests.captures import captured, surveyed


def test_an_example_has_its_query_and_the_weights_of_its_keys() -> None:
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


def test_the_server_and_the_file_say_the_same(tmp_path: Path) -> None:
    seen = captured()
    contents = Contents(seen, survey=surveyed(seen), start=None)
    answer = Answers(contents).compute("survey_head", {"layer": "1", "head": "2"})
    page = write(contents, tmp_path / "page.html").read_text()
    block = re.search(r'id="survey">([^<]*)<', page)
    assert block is not None
    saved = json.loads(zlib.decompress(base64.b64decode(block[1])))
    assert isinstance(answer, Json)
    assert saved["1/2"] == json.loads(answer.encode())
    with pytest.raises(RefusedError, match="expected a layer and a head of the survey"):
        Answers(contents).compute("survey_head", {"layer": "1", "head": "9"})
    with pytest.raises(RefusedError, match="shows no survey"):
        Answers(Contents(seen)).compute("survey_head", {"layer": "1", "head": "2"})
