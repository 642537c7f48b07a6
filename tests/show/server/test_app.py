"""The page's server over real sockets: what it answers, whom it refuses, and that nothing stops it."""

import logging
import threading
import time
from contextlib import ExitStack, closing, suppress
from io import StringIO
from pathlib import Path

import pytest
import torch

import regard
from regard.show.data.contents import Contents
from regard.show.data.shown_text import ShownText
from regard.show.server.background import BackgroundServer
from regard.show.server.guard import HEADERS, BoundAddress, can_tell_users, is_own_process
from regard.show.server.limits import Limits
from tests.captures import captured
from tests.patience import HANGING, wait_until
from tests.show.server.client import ask, connect, head, post
from tests.show.server.conftest import site_of


@pytest.fixture(scope="module")
def shared():
    """One server for all tests that change nothing."""
    site = site_of()
    with BackgroundServer(site) as running:
        # Its threads are there before the first test: `global_state` compares them after each.
        for work in [site.workers.submit(patience, time.sleep, 0.2) for patience in (0, 0, 1)]:
            work.result()
        yield running


def test_numbers_are_those_of_the_library(serve):
    seen = captured(40)
    running = serve(seen)
    m = seen[1, 3][0]
    tile = ask(running, "/api/tile?text=0&layer=1&head=3&z=0&i=0&j=0").floats.view(2, 40, 40)
    torch.testing.assert_close(tile[0], m.to_dense(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(tile[1].clamp(min=0), m.to_dense(), rtol=1e-5, atol=1e-7)
    row = ask(running, "/api/row?text=0&layer=1&head=3&row=17").floats
    torch.testing.assert_close(row, m[17].to_dense(), rtol=1e-5, atol=1e-7)
    column = ask(running, "/api/column?text=0&layer=1&head=3&col=5").floats
    torch.testing.assert_close(column, m.to_dense()[:, 5], rtol=1e-5, atol=1e-7)
    mean = ask(running, "/api/row?text=0&layer=mean&head=mean&row=17").floats
    expected = torch.stack([layer.to_dense()[0, :, 17] for layer in seen]).mean((0, 1))
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-7)


def test_everything_the_page_asks_for_is_there(shared):
    meta = ask(shared, "/api/meta").json
    assert meta["can"] == {"generate": True, "capture": True, "cut": False, "values": True, "retained": True}
    assert len(meta["texts"][0]["tokens"]) == 40
    assert len(ask(shared, "/api/thumbs?text=0&layer=0").body) == 4 * 64 * 64 + 4 * 2 * 8
    heads = ask(shared, "/api/heads?text=0").json
    assert len(heads) == 8
    assert ask(shared, "/api/layer_heads?text=0&layer=1").json == heads[4:]
    steps = ask(shared, "/api/steps?text=0&layer=0&head=1&row=20").json
    assert steps["sum"] == pytest.approx(1, abs=1e-5)
    page = ask(shared, "/")
    assert page.headers["content-type"].startswith("text/html")
    for path in ("early.js", "main.js", "style.css"):
        assert ask(shared, f"/web/{path}").status == 200


def test_only_the_files_of_the_page_are_served(shared):
    for path in (
        "/web/../server.py",
        "/web/..%2fserver.py",
        "//etc/passwd",
        "/web/parts/../main.js",
        "/web/index.html%00.js",
        "/api/file?path=/etc/passwd",
    ):
        assert ask(shared, path).status == 404, path


def test_without_a_model_nothing_can_be_read_or_generated(serve):
    running = serve(read=None, generate=None)
    assert ask(running, "/api/meta").json["can"]["capture"] is False
    for path in ("/api/capture", "/api/generate"):
        assert ask(running, path, body={"text": "a"}).status == 404


@pytest.mark.parametrize("path", ["/", "/api/meta", "/web/style.css", "/nothing", "/api/tile"])
def test_every_answer_has_the_headers_that_keep_a_browser_safe(path, shared):
    answer = ask(shared, path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "server" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost", ""])
def test_another_name_for_this_machine_is_refused(host, shared):
    for path in ("/", "/api/meta"):
        answer = ask(shared, path, headers={"host": host.format(port=shared.bound_address.port)})
        assert answer.status == 421
        assert "this server answers only to" in answer.json["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_its_own_names_are_served(host, shared):
    answer = ask(shared, "/api/meta", headers={"host": host.format(port=shared.bound_address.port)})
    assert answer.status == 200


def test_a_page_from_elsewhere_may_not_post(serve):
    running = serve()
    own = f"http://127.0.0.1:{running.bound_address.port}"
    for origin, status in (
        ("http://evil.example", 403),
        ("null", 403),
        (own.replace("http", "https"), 403),
        (f"http://localhost:{running.bound_address.port}", 403),
        (own, 200),
    ):
        answer = ask(running, "/api/capture", body={"text": "a b c"}, headers={"origin": origin})
        assert answer.status == status, origin
    # A form can send text from any page without asking; JSON it cannot.
    plain = ask(running, "/api/capture", body=b'{"text": "a"}', headers={"content-type": "text/plain"})
    assert plain.status == 415
    embedded = ask(running, "/api/meta", headers={"sec-fetch-site": "cross-site"})
    assert embedded.status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_without_the_key_there_is_nothing_but_the_refusal(host, serve):
    running = serve(host=host)
    secrets = running.bound_address.secrets
    assert len(secrets.token) >= 32
    assert running.address == f"http://127.0.0.1:{running.bound_address.port}/?token={secrets.token}"
    token = secrets.token
    paths = ["/", "/?token=", f"/?token={token[:-1]}", f"/?token={token}&token=x", f"/{token}/"]
    paths += ["/api/meta", f"/api/meta?token={token}", "/web/main.js", "/nothing", "/%C3%BC/"]
    for path in paths:
        for method in ("GET", "POST", "OPTIONS", "DELETE"):
            answer = ask(running, path, method=method, key=False)
            assert answer.status == 403, path
            assert "?token=…" in answer.json["error"]
            assert token not in answer.body.decode()
    guesses = [token[:-1], f"{token}x", token.swapcase(), secrets.cookie, secrets.ticket, "\xe9", ""]
    headers = [{"authorization": f"Bearer {guess}"} for guess in guesses]
    headers += [{"authorization": token}, {"authorization": f"Basic {token}"}, {"x-token": token}]
    headers += [{"referer": running.address}, {"cookie": f"{secrets.cookie_name}={token}"}]
    for given in headers:
        for path in ("/", "/api/meta", "/web/main.js"):
            assert ask(running, path, headers=given, key=False).status == 403, (path, given)
    assert len({BoundAddress("0.0.0.0", 80).secrets.token for _ in range(3)}) == 3


def test_the_key_is_in_no_representation_and_in_no_message(shared):
    wrong_host = ask(shared, "/", headers={"host": "evil.example"})
    shown = f"{shared!r} {shared.bound_address!r} {wrong_host.body!r} {wrong_host.headers}"
    secrets = shared.bound_address.secrets
    for secret in (secrets.token, secrets.cookie, secrets.ticket):
        assert secret not in shown


def test_the_address_gives_a_cookie_for_the_page_s_files_alone(serve):
    first, second = serve(), serve()
    cookies = []
    for running in (first, second):
        page = ask(running, f"/?token={running.bound_address.secrets.token}", key=False)
        assert page.status == 200
        cookie, *attributes = page.headers["set-cookie"].split("; ")
        assert {*attributes} == {"Path=/", "HttpOnly", "SameSite=Strict"}
        cookies.append(cookie)
    both = {"cookie": "; ".join(cookies)}  # ports share their cookies
    for running in (first, second):
        for path in ("/", "/web/main.js"):
            assert ask(running, path, headers=both, key=False).status == 200
        assert ask(running, "/api/meta", headers=both, key=False).status == 403
    # Another port may have set a cookie of the same name: that neither opens nor closes anything.
    name = cookies[0].partition("=")[0]
    assert ask(first, "/", headers={"cookie": f"{name}=x; {cookies[0]}"}, key=False).status == 200
    assert ask(first, "/", headers={"cookie": f"{name}=x; {name}=y"}, key=False).status == 403
    assert ask(first, "/", headers={"cookie": cookies[1]}, key=False).status == 403
    stale = ask(first, "/?token=old", headers=both, key=False)  # the page would keep the old token
    assert stale.status == 403


def test_a_browser_without_the_key_gets_a_page_that_says_where_it_is(shared):
    answer = ask(shared, "/", headers={"accept": "text/html,*/*"}, key=False)
    assert answer.status == 403
    assert answer.headers["content-type"].startswith("text/html")
    assert "the terminal" in answer.body.decode()
    expected = {name: value for name, value in HEADERS.items() if name != "content-security-policy"}
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_a_ticket_is_exchanged_for_the_key_by_this_user_alone(serve, monkeypatch):
    if not can_tell_users():
        pytest.skip("this system does not say whose a connection is, and makes no tickets")
    running = serve()
    ticket = running.bound_address.ticket_address.removeprefix(running.bound_address.origin)
    assert running.bound_address.secrets.token not in ticket
    answer = ask(running, f"/{ticket}", key=False)
    assert (answer.status, answer.headers["location"]) == (
        303,
        f"/?token={running.bound_address.secrets.token}",
    )
    assert ask(running, f"/{ticket}x", key=False).status == 403
    assert ask(running, f"/api/meta{ticket}", key=False).status == 403
    monkeypatch.setattr("os.geteuid", lambda: 4321)  # the client is then another user's
    assert ask(running, f"/{ticket}", key=False).status == 403


def test_where_the_system_names_no_users_the_ticket_is_the_address(monkeypatch):
    monkeypatch.setitem(can_tell_users.__globals__, "SOCKETS", (Path("/nowhere"),))
    bound_address = BoundAddress("127.0.0.1", 5)
    assert bound_address.ticket_address == bound_address.address
    assert not is_own_process(("127.0.0.1", 6), 5)


def test_a_text_is_read_while_the_page_is_told_how_far_it_is(serve):
    running = serve()
    answer = ask(running, "/api/capture", body={"text": "one two three"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.lines == [
        {"progress": {"doing": "reading", "done": 1, "of": 2}},
        {"progress": {"doing": "reading", "done": 2, "of": 2}},
        {"text": 1},
    ]
    assert len(ask(running, "/api/meta").json["texts"]) == 2
    assert len(ask(running, "/api/row?text=1&layer=0&head=0&row=2").floats) == 3


def test_generating_comes_line_by_line(shared):
    asked = {"text": "a", "tokens": 2, "temperature": 0.5}
    lines = ask(shared, "/api/generate", body=asked).lines
    assert lines[0] == {"start": {"temperature": 0.5}}
    assert [line["step"]["token"] for line in lines[1:]] == ["<0>", "<1>"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("capture", {"text": "x" * 201}, 413, "has 201 characters; the page reads at most 200"),
        ("capture", {"text": " "}, 400, "There is no text to read yet"),
        ("capture", {"text": 5}, 400, "There is no text to read yet"),
        ("capture", {}, 400, "There is no text to read yet"),
        ("capture", {"text": "a", "first": 0}, 400, "first: expected a whole number from 1"),
        (
            "capture",
            {"text": "a", "continuation": [0] * 9},
            400,
            "expected a list of at most 8",
        ),
        ("capture", {"text": "a", "continuation": ["x"]}, 400, "continuation: expected a whole number"),
        ("capture", {"text": "half \ud83d of one"}, 400, "text: expected whole characters"),
        ("capture", b"[" * 4000, 400, "expected a JSON object"),
        ("capture", b"\xff", 400, "expected a JSON object"),
        ("capture", b"x" * 5000, 413, "at most 4,096 bytes"),
        ("generate", {"text": "a", "tokens": 9}, 400, "tokens: expected a whole number from 1 to 8, got 9"),
        ("generate", {"text": "a", "tokens": True}, 400, "tokens: expected a whole number"),
        (
            "generate",
            {"text": "a", "temperature": 9},
            400,
            "temperature: expected a number from 0 to 5, got 9",
        ),
        ("generate", {"text": "a", "temperature": True}, 400, "temperature: expected a number from 0 to 5"),
    ],
)
def test_what_is_too_much_or_wrong_is_said(path, body, status, message, shared):
    answer = ask(shared, f"/api/{path}", body=body, headers={"content-type": "application/json"})
    assert answer.status == status
    assert message in answer.json["error"]
    assert ask(shared, "/api/meta").status == 200


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("tile?text=0&layer=0&head=0&z=0&i=0", 400, "j: expected this parameter in the request"),
        ("tile?text=0&layer=0&head=0&z=-1&i=0&j=0", 400, "z: expected a whole number"),
        ("tile?text=0&layer=0&head=0&z=9&i=0&j=0", 404, "z: expected a level"),
        ("tile?text=0&layer=0&head=0&z=0&i=7&j=0", 404, "tile: expected one of"),
        ("tile?text=0&layer=0&head=77&z=0&i=0&j=0", 404, "head: expected one of"),
        ("tile?text=5&layer=0&head=0&z=0&i=0&j=0", 404, "text: expected a number"),
        ("row?text=0&layer=__class__&head=0&row=0", 404, "layer: expected one of"),
        ("row?text=5&layer=mean&head=mean&row=0", 404, "text: expected a number"),
        ("column?text=0&layer=mean&head=mean&col=999", 404, "col: expected a number"),
        ("thumbs?text=-1&layer=0", 400, "text: expected a whole number"),
        ("row?text=0&layer=0&head=most&row=0", 400, "head: expected a whole number"),
        ("meta/", 404, "there is nothing at this address"),
        ("row?text=0&layer=0&head=0&row=4e1", 400, "row: expected a whole number"),
        ("row?text=0&layer=0&head=0&row=" + "9" * 5000, 400, "row: expected a whole number"),
        ("row?text=0&layer=0&head=0&row=999", 404, "row: expected a number"),
        ("steps?text=0&layer=0&head=0&row=999", 404, "row: expected a number"),
    ],
)
def test_what_is_not_there_is_said(query, status, message, shared):
    answer = ask(shared, f"/api/{query}")
    assert answer.status == status
    assert message in answer.json["error"]


def test_a_model_that_fails_is_reported_and_the_server_goes_on(serve):
    running = serve()
    assert ask(running, "/api/capture", body={"text": "trouble"}).lines[-1] == {
        "error": "RuntimeError: the model broke down"
    }
    assert ask(running, "/api/capture", body={"text": "wrong"}).lines[-1] == {
        "error": "config.json: expected JSON"
    }
    assert ask(running, "/api/capture", body={"text": "a b"}).lines[-1] == {"text": 1}


@pytest.fixture
def logged():
    """What is logged. The fixture of pytest comes with a plugin that slows every small test."""
    text = StringIO()
    handler = logging.StreamHandler(text)
    loggers = [logging.getLogger(), logging.getLogger("uvicorn")]  # whose messages do not reach the first
    for logger in loggers:
        logger.addHandler(handler)
    yield text
    for logger in loggers:
        logger.removeHandler(handler)


def test_a_mistake_of_ours_is_answered_and_logged(serve, monkeypatch, logged):
    monkeypatch.setattr(ShownText, "row", lambda *_: 1 / 0)
    running = serve()
    answer = ask(running, "/api/row?text=0&layer=0&head=0&row=0")
    assert (answer.status, answer.json) == (
        500,
        {"error": "internal error: ZeroDivisionError: division by zero"},
    )
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert "a request failed: /api/row" in logged.getvalue()
    assert ask(running, "/api/meta").status == 200


def test_too_many_tokens_and_too_many_texts(serve):
    running = serve()
    long = ask(running, "/api/capture", body={"text": "a " * 70}).lines[-1]
    assert long == {"too_long": {"tokens": 70, "most": 64}}
    for number in (1, 2):
        assert ask(running, "/api/capture", body={"text": "a b"}).lines[-1] == {"text": number}
    full = ask(running, "/api/capture", body={"text": "a b"})
    assert full.status == 409
    assert "holds 3 texts, which is its limit: remove one" in full.json["error"]
    assert ask(running, "/api/remove", body={"text": 0}).json == {"text": 1}
    assert ask(running, "/api/capture", body={"text": "a b"}).lines[-1] == {"text": 3}


class Slow:
    """A reader that goes on until it is let go or nobody waits for it, and says which of the two it was."""

    def __init__(self):
        self.began, self.go_on, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, text, report):
        try:
            for number in range(3000):
                report("reading", number, 3000)
                self.began.set()
                if self.go_on.wait(0.01):
                    return captured(8)
        except BaseException:
            self.stopped.set()
            raise
        raise AssertionError("nobody let it go")


def test_one_text_is_read_at_a_time_and_others_are_refused(serve):
    slow = Slow()
    running = serve(read=slow)
    with closing(connect(running, post(running, "/api/capture", b'{"text": "a"}'))):
        assert slow.began.wait(HANGING)
        for path in ("/api/capture", "/api/generate"):
            busy = ask(running, path, body={"text": "b"})
            assert busy.status == 409
            assert busy.json["error"] == "the model is busy reading a text: try again when it is done"
        assert ask(running, "/api/row?text=0&layer=0&head=0&row=3").status == 200
        slow.go_on.set()
        wait_until(lambda: len(ask(running, "/api/meta").json["texts"]) == 2)
    assert ask(running, "/api/generate", body={"text": "b"}).status == 200


def test_the_work_ends_when_the_one_who_asked_has_left(serve):
    slow = Slow()
    running = serve(read=slow)
    connect(running, post(running, "/api/capture", b'{"text": "a"}')).close()
    assert slow.stopped.wait(HANGING)
    slow.go_on.set()
    wait_until(lambda: ask(running, "/api/capture", body={"text": "b"}).status == 200)


def test_a_slow_client_holds_nobody_up(shared):
    whole = head(shared, "GET /api/meta")
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(connect(shared, whole[:30]))) for _ in range(10)]
        for _ in range(5):
            assert ask(shared, "/api/meta").status == 200
        slow[0].sendall(whole[30:])
        assert slow[0].recv(4096).startswith(b"HTTP/1.1 200")
    assert ask(shared, "/api/meta").status == 200


def test_a_request_that_announces_too_much_is_refused_before_it_comes(shared):
    with closing(connect(shared, post(shared, "/api/capture", b"{", length=999_999_999))) as client:
        assert b" 413 " in client.recv(4096).splitlines()[0]


def test_a_request_that_breaks_off_is_no_mistake_of_ours(serve, logged):
    running = serve()
    with closing(connect(running, post(running, "/api/capture", b'{"te', length=99))):
        time.sleep(0.2)
    running.close()
    assert "failed" not in logged.getvalue()


def test_work_that_nobody_waits_for_is_dropped(serve, monkeypatch):
    begun = []
    let_go = threading.Event()

    def row(self, layer, head, row, quantity):
        begun.append(row)
        let_go.wait(HANGING)
        return torch.zeros(1)

    monkeypatch.setattr(ShownText, "row", row)
    running = serve(limits=Limits(workers=1))
    waiting = []
    for number in range(6):
        waiting.append(connect(running, head(running, f"GET /api/row?text=0&layer=0&head=0&row={number}")))
        wait_until(lambda number=number: running.site.workers.urgent_left == number + 1)
    for connection in waiting[1:]:
        connection.close()
    wait_until(lambda: running.site.workers.urgent_left == 1)
    let_go.set()
    assert waiting[0].recv(4096).startswith(b"HTTP/1.1 200")
    assert begun == [0]
    waiting[0].close()


def test_it_cuts_connections_whose_answers_do_not_come_in_time(serve, monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(ShownText, "row", lambda *_: (began.set(), go_on.wait(HANGING)))
    running = serve()
    row = head(running, "GET /api/row?text=0&layer=0&head=0&row=0")
    with closing(connect(running, row)) as client:
        assert began.wait(HANGING)
        running.close()
        assert not running._server.server_state.connections
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    go_on.set()


def test_a_text_that_was_removed_has_no_answer_and_is_no_error(serve):
    running = serve()
    number = running.site.contents.add(captured(12))
    running.site.contents.remove(number)
    assert ask(running, f"/api/row?text={number}&layer=0&head=0&row=3").status == 204
    assert ask(running, f"/api/row?text={number + 1}&layer=0&head=0&row=3").status == 404


def test_a_capture_whose_files_are_damaged_is_reported_and_the_rest_goes_on(serve, tmp_path, monkeypatch):
    for owner, name in ((ShownText, "telling"), (Contents, "prepare_first_view")):  # which would read a layer
        monkeypatch.setattr(owner, name, lambda *_: 0)
    captured(12, layers=3).save(tmp_path / "capture")
    running = serve(regard.load(tmp_path / "capture"))
    assert ask(running, "/api/meta").status == 200
    for path in (tmp_path / "capture").glob("*.safetensors"):
        path.write_bytes(b"\x00" * 64)
    found = ask(running, "/api/row?text=0&layer=0&head=0&row=3")
    assert found.status == 400
    assert "is not a complete safetensors file" in found.json["error"]
    for path in (tmp_path / "capture").glob("*.safetensors"):
        path.unlink()
    found = ask(running, "/api/row?text=0&layer=2&head=0&row=3")
    assert found.status == 400
    assert "which does not exist" in found.json["error"]
    assert ask(running, "/api/capture", body={"text": "a b c"}).lines[-1] == {"text": 1}
    assert ask(running, "/api/row?text=1&layer=0&head=0&row=2").status == 200


def test_more_connections_than_allowed_are_answered_with_503(serve):
    running = serve(limits=Limits(connections=4))
    silent = [connect(running) for _ in range(4)]
    wait_until(lambda: len(running._server.server_state.connections) == 4)
    assert ask(running, "/api/meta").status == 503
    for client in silent:
        client.close()
    wait_until(lambda: ask(running, "/api/meta").status == 200)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("key", [False, True])
def test_a_refusal_can_be_read_by_one_who_is_still_sending(chunked, key, shared):
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {8 << 20}"
    begun = head(shared, "POST /api/capture", "Content-Type: application/json", length)
    part = b"100000\r\n" + b" " * (1 << 20) + b"\r\n" if chunked else b" " * (1 << 20)
    begun = begun if key else begun.replace(b"Bearer ", b"Bearer x")
    with closing(connect(shared, begun)) as client:
        for _ in range(8):
            client.sendall(part)
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 " if key else b"HTTP/1.1 403 ")
