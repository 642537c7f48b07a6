"""A site before there is something to show, and its work: urgent requests do not wait for patient ones."""

import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.limits import StoppedError
from regard.show.server.opening_site import CANCELLED, OpeningSite
from regard.show.server.work_queue import WorkQueue
from tests.captures import captured
from tests.patience import HANGING


@pytest.fixture
def running() -> Iterator[BackgroundServer]:
    with BackgroundServer(OpeningSite()) as server:
        yield server


@pytest.fixture
def begin() -> Iterator[Callable[..., Any]]:
    """Gives a response of which nothing is read yet, also one that refuses."""
    with ExitStack() as stack:

        def request(running: BackgroundServer, path: str, body: Any = None, **headers: str) -> Any:
            origin, _, token = running.address.partition("?token=")
            words = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            words |= {name.replace("_", "-"): value for name, value in headers.items()}
            data = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(origin + path, data, words)
            try:
                return stack.enter_context(urllib.request.urlopen(asked, timeout=HANGING))
            except urllib.error.HTTPError as refusal:
                return stack.enter_context(refusal)

        yield request


def site_of(running: BackgroundServer) -> OpeningSite:
    assert isinstance(running.site, OpeningSite)
    return running.site


def test_progress_is_streamed_and_what_waited_is_answered_once_there_is_something(
    running: BackgroundServer, begin: Callable[..., Any]
) -> None:
    site = site_of(running)
    metas: list[Any] = []
    waiting = threading.Thread(target=lambda: metas.append(json.load(begin(running, "api/meta"))))
    waiting.start()
    lines = begin(running, "api/opening", {})
    assert json.loads(lines.readline()) == {"progress": {"doing": "opening", "done": 0, "of": 0}}
    site.report("reading the text", 3, 30)
    assert json.loads(lines.readline()) == {"progress": {"doing": "reading the text", "done": 3, "of": 30}}
    assert begin(running, "api/capture", {"text": "a"}).status == 409
    assert metas == []
    site.open(Site(Contents(captured(12))))
    assert json.loads(lines.readline()) == {"ready": True}
    assert lines.readline() == b""
    waiting.join(HANGING)
    assert metas[0]["model"] == "random"
    assert begin(running, "api/opening", {}).read() == b'{"ready": true}\n'  # who comes late
    assert begin(running, "api/cancel", {}).status == 409
    assert begin(running, "api/row?text=0&layer=0&head=0&row=3").status == 200


def test_a_failure_is_a_sentence_for_those_who_follow_who_wait_and_who_come_later(
    running: BackgroundServer, begin: Callable[..., Any]
) -> None:
    lines = begin(running, "api/opening", {})
    lines.readline()
    site_of(running).fail("model: there is no such model")
    assert json.loads(lines.readline()) == {"error": "model: there is no such model"}
    meta = begin(running, "api/meta")
    assert (meta.status, json.load(meta)) == (503, {"error": "model: there is no such model"})
    late = begin(running, "api/opening", {})
    assert json.loads(late.readline()) == {"error": "model: there is no such model"}


def test_a_reader_can_cancel_it(begin: Callable[..., Any]) -> None:
    cancelled = threading.Event()
    with BackgroundServer(OpeningSite(on_cancel=cancelled.set)) as running:
        site = site_of(running)
        site.report("reading the text", 0, 2)
        assert begin(running, "api/cancel", {}).status == 200
        assert cancelled.is_set()
        with pytest.raises(StoppedError):
            site.report("reading the text", 1, 2)
        assert json.load(begin(running, "api/meta")) == {"error": CANCELLED}


def test_the_page_s_files_are_there_before_the_data_and_compressed_for_those_who_can(
    running: BackgroundServer, begin: Callable[..., Any]
) -> None:
    page = begin(running, f"?{running.address.partition('?')[2]}")
    assert b"web/main.js" in page.read()
    cookie = page.headers["set-cookie"].partition(";")[0]
    bodies = {}
    for encoding in ("identity", "gzip", "br, gzip;q=0.5", "*"):
        answer = begin(running, "web/main.js", cookie=cookie, accept_encoding=encoding)
        body = answer.read()
        if answer.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        bodies[encoding] = (answer.headers["content-encoding"], body)
    assert {body for _, body in bodies.values()} == {bodies["identity"][1]}
    assert [kind for kind, _ in bodies.values()] == [None, "gzip", "gzip", None]


def test_urgent_work_runs_while_patient_work_does() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()
    order: list[str] = []

    def block() -> None:
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


def test_what_waits_at_the_end_is_cancelled() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert go.wait(HANGING)

    queue.submit(True, block)
    assert begun.wait(HANGING)
    waiting = queue.submit(True, lambda: 7)
    queue.shutdown()
    go.set()
    assert waiting.cancelled()
