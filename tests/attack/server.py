"""Attack the page's server: drawn requests, bodies that are too large, and guesses at its key."""

from __future__ import annotations

import http.client
import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from tests.attack.progress import counted
from tests.captures import captured
from tests.patience import HANGING

DRAWS = 6000
PRIVATE = "a private text"  # the model's name, which every answer with data holds
REFUSALS = {400, 403, 421}  # what a client without the key may get


class Target:
    """A running server by its printed address."""

    def __init__(self, printed: str) -> None:
        address = urlsplit(printed)
        assert address.port is not None, "the server did not start"
        self.port, self.token = address.port, parse_qs(address.query).get("token", [""])[0]
        self.host = f"127.0.0.1:{self.port}"
        self.key = {"authorization": f"Bearer {self.token}"}

    def get(
        self, path: str, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Return the status, headers and body of an answer; without `headers`, the request has the key."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGING)) as connection:
            connection.request("GET", path, headers=self.key if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def connect(self) -> socket.socket:
        """Return a connection that has sent nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANGING)

    def head(self, line: str, *headers: str, key: bool = False) -> bytes:
        """Return the head of a request, with the key or without it."""
        own = [f"Authorization: Bearer {self.token}"] if key else []
        return "\r\n".join([line, f"Host: {self.host}", *own, *headers, "", ""]).encode("latin-1")


@contextmanager
def target() -> Iterator[Target]:
    """A server that shows a private text."""
    site = Site(Contents(captured(300, model=PRIVATE)), read=lambda text, report: captured(8))
    with BackgroundServer(site) as running:
        yield Target(running.address)


def send_too_much(attacked: Target, sizes: list[int]) -> dict[str, int | float]:
    """Send bodies over the limit in every way: each is answered with a 413 that can be read."""
    sent = 0
    for size in sizes:
        for extra in ((), ("Expect: 100-continue",)):
            for chunked in (False, True):
                length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
                head = attacked.head(
                    "POST /api/capture HTTP/1.1", "Content-Type: application/json", length, *extra, key=True
                )
                block = b"10000\r\n" + b" " * 65536 + b"\r\n" if chunked else b" " * 65536
                body = block * (size // 65536) + (b"0\r\n\r\n" if chunked else b" " * (size % 65536))
                with closing(attacked.connect()) as client:
                    client.sendall(head + body)  # all of it before the answer is read
                    answer = b""
                    while not answer.endswith(b"}") and (part := client.recv(65536)):
                        answer += part
                answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 413 "), (
                    f"{size} bytes, {length}, {extra}: got {answer[:200]!r}"
                )
                assert b"at most 1,048,576 bytes" in answer, answer
                sent += 1
    return {"bodies over the limit, all answered": sent}


def guess(attacked: Target) -> dict[str, int | float]:
    """Try what resembles the key, on every kind of path: nothing but the refusal comes."""
    token, port = attacked.token, attacked.port
    status, headers, _ = attacked.get(f"/?token={token}", {})
    assert (status, token == "") == (200, False), "the printed address does not open the page"
    name, _, cookie = (headers["set-cookie"] or "").partition(";")[0].partition("=")
    wrong = ["", token[:-1], token + "x", token.swapcase(), token[::-1], "x" * len(token)]
    wrong += [cookie, "\xe9", "null"]
    guesses: list[dict[str, str]] = [{}]
    guesses += [
        {"authorization": f"{scheme}{value}"} for scheme in ("Bearer ", "Bearer", "") for value in wrong
    ]
    guesses += [{"authorization": token}, {"authorization": f"Basic {token}"}, {"x-token": token}]
    guesses += [{"referer": f"http://127.0.0.1:{port}/?token={token}"}]
    guesses += [{"cookie": f"{name}={value}"} for value in (*wrong[:-3], token, f'"{cookie}"', cookie[:-1])]
    guesses += [{"cookie": f"{name[:-1]}={cookie}"}, {"cookie": f"regard-{port + 1}={cookie}"}]
    guesses += [
        {"cookie": f"{name}=x; {name}=y"},
        {"cookie": f"x={name}={cookie}"},
        {"cookie": f"token={token}"},
    ]
    tried = 0
    for given in guesses:
        for path in ("/", "/web/main.js", "/api/meta", "/api/tile?text=0&layer=0&head=0&z=0&i=0&j=0", "/no"):
            expect_refusal(attacked, path, given, cookie)
            tried += 1
    paths = [f"/?token={value}" for value in wrong[:-3]]
    paths += [f"/?token={token}&token={token}", f"/?Token={token}", f"/{token}/", f"/api/meta?token={token}"]
    paths += [f"/web/main.js?token={token}", f"/?ticket={token}", "/?ticket="]
    for path in paths:
        expect_refusal(attacked, path, {"accept": "text/html"}, cookie)
    # The cookie opens the page's own files; data needs the header, which other origins cannot send.
    assert attacked.get("/web/main.js", {"cookie": f"a=b; {name}=wrong; {name}={cookie}"})[0] == 200
    expect_refusal(attacked, "/api/meta", {"cookie": f"{name}={cookie}"}, cookie)
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1:{port + 1}", "127.0.0.1"):
        expect_refusal(attacked, "/api/meta", {**attacked.key, "host": host}, cookie)
        expect_refusal(attacked, f"/?token={token}", {"host": host}, cookie)
    for site in ("cross-site", "same-site"):
        expect_refusal(attacked, "/api/meta", {**attacked.key, "sec-fetch-site": site}, cookie)
    return {"guesses at the key, all refused": tried + len(paths) + 11}


def expect_refusal(attacked: Target, path: str, headers: dict[str, str], cookie: str) -> None:
    """Ask, and raise unless the answer is a refusal that holds nothing."""
    status, answered, body = attacked.get(path, headers)
    everything = f"{answered}{body.decode('utf-8', 'replace')}"
    assert status in REFUSALS, f"{path} with {headers} was answered with {status}: {body[:200]!r}"
    for secret in (PRIVATE, attacked.token, cookie):
        assert secret not in everything, f"{path} with {headers}: the refusal holds {secret!r}"


def draw_request(attacked: Target, draw: random.Random, key: bool) -> bytes:
    """Return a request that is mostly HTTP."""
    names = ["text", "layer", "head", "row", "col", "z", "i", "j", "token", "ticket", "without", "%00", ""]
    values = ["0", "1", "-1", "mean", "9" * 30, "", "%C3%A9", "%ff", "x" * draw.randrange(3000), "0&text=0"]
    paths = [
        "meta",
        "tile",
        "row",
        "column",
        "thumbs",
        "layer_heads",
        "heads",
        "steps",
        "eviction",
        "capture",
        "generate",
    ]
    odd = ["*", "//", "/web/../server.py", "/%2e%2e/x", "http://evil.example/", "", "/\xff", "/x y"]
    path = draw.choice([f"/api/{draw.choice(paths)}"] * 12 + ["/", "/", "/web/main.js", draw.choice(odd)])
    if draw.random() < 0.7:
        path += "?" + "&".join(
            f"{draw.choice(names)}={draw.choice(values)}" for _ in range(draw.randrange(7))
        )
    method = draw.choice(
        ["GET"] * 20 + ["POST"] * 16 + ["HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "get", "", "PRI"]
    )
    version = draw.choice(["HTTP/1.1"] * 40 + ["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", ""])
    body = draw.choice(
        [b"", b'{"text": "a b"}', b"[]", b"[" * 5000, b"\xff" * 70, b"4\r\nabcd\r\n0\r\n\r\n", b"zz\r\n"]
    )
    headers = (
        [f"Host: {attacked.host}"]
        if draw.random() < 0.9
        else [draw.choice(["Host: x", "", "Host: a\r\nHost: b"])]
    )
    headers += [f"Authorization: Bearer {attacked.token}"] if key else []
    choices = [
        "Content-Type: application/json",
        "Content-Type: text/plain",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
        "Expect: 100-continue",
        "Accept: text/html",
        "Origin: http://evil.example",
        "Sec-Fetch-Site: cross-site",
        f"Cookie: regard-{attacked.port}={'x' * draw.randrange(40)}",
        f"Referer: http://{attacked.host}/?token={attacked.token}",
        "X-Long: " + "x" * draw.randrange(40_000),
    ]
    headers += draw.sample(choices, draw.randrange(6))
    if draw.random() < 0.9:
        headers.append("Connection: close")
    if draw.random() < 0.8:
        headers.append(f"Content-Length: {len(body)}")
    else:
        lengths = [f"Content-Length: {length}" for length in (0, 5, 10**6, 10**12, -1, "x")]
        headers += draw.sample([*lengths, *["Transfer-Encoding: chunked"] * 4, "Transfer-Encoding: gzip"], 1)
    if draw.random() < 0.1:
        headers.append(draw.choice([": empty", "no colon", "X-Nul: \x00"]))
    lines = [" ".join(filter(None, (method, path, version))), *headers, "", ""]
    request = bytearray("\r\n".join(lines).encode("latin-1", "replace") + body)
    if not key and draw.random() < 0.2:
        for _ in range(draw.randrange(1, 6)):
            request[draw.randrange(len(request))] = draw.randrange(256)
    return bytes(request)


def send_drawn(attacked: Target, seed: int, number: int) -> str:
    """Send a drawn request and return the status of its answer; raise if it is a failure or a leak."""
    draw = random.Random(f"{seed} {number}")
    key = draw.random() < 0.4
    request = draw_request(attacked, draw, key)
    answer = b""
    with closing(attacked.connect()) as client, suppress(OSError):
        client.settimeout(0.25 if draw.random() < 0.9 else 0.01)
        client.sendall(request)
        if draw.random() < 0.1:
            client.shutdown(socket.SHUT_WR)
        while len(answer) < 1 << 20 and (part := client.recv(65536)):
            answer += part
    where = f"seed {seed}, draw {number}: {request[:300]!r} was answered with {answer[:300]!r}"
    statuses = [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert all(status < 500 for status in statuses), where
    if not key:
        assert set(statuses) <= REFUSALS, where
        assert PRIVATE.encode() not in answer, where
    return str(statuses[0]) if statuses else "closed or waiting"


def send_drawn_requests(attacked: Target, draws: int, seed: int) -> dict[str, int | float]:
    """Send drawn requests, eight at a time."""
    with ThreadPoolExecutor(8) as clients:
        answers = clients.map(lambda number: send_drawn(attacked, seed, number), range(draws))
        statuses = Counter(status for _, status in zip(counted(draws, "requests"), answers, strict=True))
    assert attacked.get("/api/meta")[0] == 200, "the server does not answer after the drawn requests"
    return {"drawn requests": draws, **{f"answered {status}": n for status, n in sorted(statuses.items())}}


def attack(draws: int, seed: int) -> dict[str, int | float]:
    """Attack a server; with 1,000 draws and more, also with bodies of 16 MiB."""
    with target() as attacked:
        return {
            **guess(attacked),
            **send_too_much(attacked, [1 << 21, 1 << 24] if draws >= 1000 else [1 << 21]),
            **send_drawn_requests(attacked, draws, seed),
        }
