"""Work of the server: a site that is still opened, edited runs one at a time, and urgent requests first."""

import gzip
import json
import threading
from contextlib import closing
from functools import partial

import pytest

from regard.show.data.contents import Contents
from regard.show.data.cuts import HeadCut
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.limits import StoppedError
from regard.show.server.opening_site import CANCELLED, OpeningSite
from regard.show.server.work_queue import WorkQueue
from tests.captures import captured, predicted
from tests.patience import HANGING
from tests.show.server.client import ask, begin, connect, post


@pytest.fixture
def running():
    with BackgroundServer(OpeningSite()) as server:
        yield server


def test_progress_is_streamed_and_what_waited_is_answered_once_there_is_something(running):
    site = running.site
    metas = []
    waiting = threading.Thread(target=lambda: metas.append(ask(running, "/api/meta").json))
    waiting.start()
    with begin(running, "/api/opening", body={}) as lines:
        assert json.loads(lines.readline()) == {"progress": {"doing": "opening", "done": 0, "of": 0}}
        site.report("reading the text", 3, 30)
        assert json.loads(lines.readline()) == {
            "progress": {"doing": "reading the text", "done": 3, "of": 30}
        }
        assert ask(running, "/api/capture", body={"text": "a"}).status == 409
        assert metas == []
        site.open(Site(Contents(captured(12))))
        assert json.loads(lines.readline()) == {"ready": True}
        assert lines.readline() == b""
    waiting.join(HANGING)
    assert metas[0]["model"] == "random"
    assert ask(running, "/api/opening", body={}).lines == [{"ready": True}]  # who comes late
    assert ask(running, "/api/cancel", body={}).status == 409
    assert ask(running, "/api/row?text=0&layer=0&head=0&row=3").status == 200


def test_a_failure_is_a_sentence_for_those_who_follow_who_wait_and_who_come_later(running):
    failure = {"error": "model: there is no such model"}
    with begin(running, "/api/opening", body={}) as lines:
        lines.readline()
        running.site.fail("model: there is no such model")
        assert json.loads(lines.readline()) == failure
    meta = ask(running, "/api/meta")
    assert (meta.status, meta.json) == (503, failure)
    assert ask(running, "/api/opening", body={}).lines == [failure]


def test_a_reader_can_cancel_it():
    cancelled = threading.Event()
    with BackgroundServer(OpeningSite(on_cancel=cancelled.set)) as running:
        running.site.report("reading the text", 0, 2)
        assert ask(running, "/api/cancel", body={}).status == 200
        assert cancelled.is_set()
        with pytest.raises(StoppedError):
            running.site.report("reading the text", 1, 2)
        assert ask(running, "/api/meta").json == {"error": CANCELLED}


def test_the_page_s_files_are_there_before_the_data_and_compressed_for_those_who_can(running):
    page = ask(running, f"/?{running.address.partition('?')[2]}")
    assert b"web/main.js" in page.body
    cookie = page.headers["set-cookie"].partition(";")[0]
    bodies, kinds = set(), []
    for encoding in ("identity", "gzip", "br, gzip;q=0.5", "*"):
        answer = ask(running, "/web/main.js", headers={"cookie": cookie, "accept-encoding": encoding})
        kinds.append(answer.headers.get("content-encoding"))
        bodies.add(gzip.decompress(answer.body) if kinds[-1] == "gzip" else answer.body)
    assert len(bodies) == 1
    assert kinds == [None, "gzip", "gzip", None]


def test_urgent_work_runs_while_patient_work_does():
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()
    order = []

    def block():
        begun.set()
        assert go.wait(HANGING)

    first = queue.submit(True, block)
    assert begun.wait(HANGING)
    later = queue.submit(True, order.append, "scores")
    dropped = queue.submit(True, order.append, "nobody waits for it")
    last = queue.submit(True, order.append, "thumbnails")
    assert dropped.cancel()
    assert queue.submit(False, lambda: "urgent").result(30) == "urgent"
    go.set()
    for future in (first, later, last):
        future.result(30)
    assert order == ["scores", "thumbnails"]
    queue.shutdown()


def test_what_waits_at_the_end_is_cancelled():
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()

    def block():
        begun.set()
        assert go.wait(HANGING)

    queue.submit(True, block)
    assert begun.wait(HANGING)
    waiting = queue.submit(True, lambda: 7)
    queue.shutdown()
    go.set()
    assert waiting.cancelled()


HEAD = {"kind": "head", "layer": "1", "head": 2}


def rerun(seen, cuts, report):
    report("reading", 1, 2)
    if HeadCut("0", 3) in cuts:
        raise ValueError("block: no attention call was edited")
    return predicted(captured(seen.layers[0].shape[2], seed=len(cuts)), seed=7)


@pytest.fixture
def serve(serve):
    """Starts a server that can run with something cut."""
    return partial(serve, predicted(captured(12)), run_cut=rerun)


def test_a_run_with_cuts_comes_line_by_line_and_is_undone(serve):
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
def test_what_is_too_much_or_wrong_is_said_before_the_model_runs(body, status, message, serve):
    running = serve()
    answer = ask(running, "/api/cut", body=body, headers={"content-type": "application/json"})
    assert (answer.status, message in answer.json["error"]) == (status, True)
    assert len(ask(running, "/api/meta").json["texts"]) == 1


def test_an_edit_that_fails_is_said_and_the_earlier_run_stays(serve):
    running = serve()
    assert ask(running, "/api/cut", body={"text": 0, "cuts": [HEAD]}).lines[-1] == {"text": 1}
    wrong = [{"kind": "head", "layer": "0", "head": 3}]
    answer = ask(running, "/api/cut", body={"text": 0, "cuts": wrong})
    assert answer.lines[-1] == {"error": "block: no attention call was edited"}
    assert ask(running, "/api/meta").json["texts"][1]["removed"] is False


def test_edited_runs_take_no_text_s_place(serve):
    running = serve()
    for number in range(4):
        lines = ask(running, "/api/cut", body={"text": 0, "cuts": [{**HEAD, "head": number}]}).lines
        assert lines[-1] == {"text": number + 1}
    for _ in range(2):  # of three texts at most
        assert "text" in ask(running, "/api/capture", body={"text": "a b c"}).lines[-1]
    assert ask(running, "/api/capture", body={"text": "a b c"}).status == 409


def test_one_run_at_a_time_and_it_stops_with_its_client(serve):
    begun, gone, stopped = threading.Event(), threading.Event(), threading.Event()

    def slow(seen, cuts, report):
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
