"""Edited runs over real sockets: run, replaced, undone, bounded, one at a time, stopped with their client."""

import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from regard.recorder import Capture
from regard.show.data.cuts import Cut, HeadCut
from regard.show.server.jobs import ReportProgress
from tests.captures import captured, predicted
from tests.patience import HANGING
from tests.show.server.client import ask, connect, post
from tests.show.server.conftest import Serve

HEAD = {"kind": "head", "layer": "1", "head": 2}


def rerun(seen: Capture, cuts: Sequence[Cut], report: ReportProgress) -> Capture:
    report("reading", 1, 2)
    if HeadCut("0", 3) in cuts:
        raise ValueError("block: no attention call was edited")
    return predicted(captured(seen.layers[0].shape[2], seed=len(cuts)), seed=7)


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """Starts a server that can run with something cut."""
    return partial(serve, predicted(captured(12)), run_cut=rerun)


def test_a_run_with_cuts_comes_line_by_line_and_is_undone(serve: Serve) -> None:
    running = serve()
    assert ask(running, "/api/meta").json["can"]["cut"] is True
    lines = ask(running, "/api/cut", body={"text": 0, "cuts": [HEAD]}).lines
    assert lines[0] == {"progress": {"doing": "reading", "done": 1, "of": 2}}
    assert lines[-1] == {"text": 1}
    edited = ask(running, "/api/meta").json["texts"][1]
    assert edited["edited"]["cuts"] == [HEAD]
    assert edited["title"] == ask(running, "/api/meta").json["texts"][0]["title"]
    assert len(edited["edited"]["changes"]["most"]) == 10
    # From the edited run on, the text is still the model's own: another run takes its place.
    more = {"text": 1, "cuts": [HEAD, {**HEAD, "head": 1}]}
    assert ask(running, "/api/cut", body=more).lines[-1] == {"text": 2}
    texts = ask(running, "/api/meta").json["texts"]
    assert [text["removed"] for text in texts] == [False, True, False]
    assert texts[2]["edited"]["text"] == 0
    assert ask(running, "/api/row?text=1&layer=0&head=0&row=2").status == 204
    assert ask(running, "/api/remove", body={"text": 2}).json == {"text": 0}
    assert ask(running, "/api/remove", body={"text": 2}).status == 410
    assert ask(running, "/api/remove", body={"text": 0}).status == 400


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"cuts": [HEAD]}, 400, "text: expected a whole number"),
        ({"text": 4, "cuts": [HEAD]}, 404, "text: expected a number from 0 to 0"),
        ({"text": 0, "cuts": [{**HEAD, "head": 9}]}, 400, "head: expected a whole number from 0 to 3"),
        (b"[]", 400, "expected a JSON object"),
    ],
)
def test_what_is_too_much_or_wrong_is_said_before_the_model_runs(
    body: Any, status: int, message: str, serve: Serve
) -> None:
    running = serve()
    answer = ask(running, "/api/cut", body=body, headers={"content-type": "application/json"})
    assert (answer.status, message in answer.json["error"]) == (status, True)
    assert len(ask(running, "/api/meta").json["texts"]) == 1


def test_an_edit_that_fails_is_said_and_the_earlier_run_stays(serve: Serve) -> None:
    running = serve()
    assert ask(running, "/api/cut", body={"text": 0, "cuts": [HEAD]}).lines[-1] == {"text": 1}
    wrong = [{"kind": "head", "layer": "0", "head": 3}]
    answer = ask(running, "/api/cut", body={"text": 0, "cuts": wrong})
    assert answer.lines[-1] == {"error": "block: no attention call was edited"}
    assert ask(running, "/api/meta").json["texts"][1]["removed"] is False


def test_edited_runs_take_no_text_s_place(serve: Serve) -> None:
    running = serve()
    for number in range(4):
        lines = ask(running, "/api/cut", body={"text": 0, "cuts": [{**HEAD, "head": number}]}).lines
        assert lines[-1] == {"text": number + 1}
    for _ in range(2):  # of three texts at most
        assert "text" in ask(running, "/api/capture", body={"text": "a b c"}).lines[-1]
    assert ask(running, "/api/capture", body={"text": "a b c"}).status == 409


def test_one_run_at_a_time_and_it_stops_with_its_client(serve: Serve) -> None:
    begun, gone, stopped = threading.Event(), threading.Event(), threading.Event()

    def slow(seen: Capture, cuts: Sequence[Cut], report: ReportProgress) -> Capture:
        begun.set()
        try:
            while True:
                report("reading", 1, 2)
                gone.wait(0.01)
        finally:
            stopped.set()

    running = serve(run_cut=slow)
    body = b'{"text": 0, "cuts": [{"kind": "head", "layer": "1", "head": 2}]}'
    with closing(connect(running, post(running, "/api/cut", body))):
        assert begun.wait(HANGING)
        busy = ask(running, "/api/cut", body={"text": 0, "cuts": [HEAD]})
        assert busy.status == 409
        assert busy.json["error"] == (
            "the model is busy running with something cut: try again when it is done"
        )
    assert stopped.wait(HANGING)
    assert len(ask(running, "/api/meta").json["texts"]) == 1
