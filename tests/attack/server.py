"""Attack the page's server: crowds of hostile clients beside readers, drawn requests, and guesses at its key.

The server runs in a process of its own with few file descriptors and short limits on time, so that minutes
become seconds. Readers measure how long they wait while the attack goes on.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.patience import HANGING

if sys.platform != "win32":
    import resource

DRAWS = 6000
PRIVATE = "a private text"  # the model's name, which every answer with data holds
DESCRIPTORS = 256  # that the server may have
REFUSALS = {400, 403, 421}  # what a client without the key may get
ROOT = Path(__file__).parents[2]


class Target:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], patience: float) -> None:
        self.process, self.patience = process, patience
        address = urlsplit(self._read_line())
        assert address.port is not None, "the server did not start"
        self.port, self.token = address.port, parse_qs(address.query).get("token", [""])[0]
        self.host = f"127.0.0.1:{self.port}"
        self.key = {"authorization": f"Bearer {self.token}"}

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def descriptors(self) -> int:
        """Return how many files and sockets the server has open."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._read_line())

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
def target(patience: float) -> Iterator[Target]:
    """A server that waits so many seconds for a request; it must end by itself when asked to."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.server", str(patience)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Target(process, patience)
        _, problems = process.communicate(timeout=HANGING)
        assert (process.returncode, problems) == (0, ""), f"the server ended with:\n{problems}"
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def serve(patience: float) -> None:
    """Be the server: print the address, then the number of open files for each line of input."""
    from regard.show.data.contents import Contents
    from regard.show.server.app import Site
    from regard.show.server.background import BackgroundServer
    from regard.show.server.limits import Limits
    from tests.captures import captured

    if sys.platform != "win32":
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    site = Site(
        Contents(captured(300, model=PRIVATE)),
        read=lambda text, report: captured(8),
        limits=Limits(patience=patience, stalled=patience),
    )
    with BackgroundServer(site) as running:
        print(running.address, flush=True)
        for _ in sys.stdin:
            print(len(os.listdir("/dev/fd")), flush=True)


class Readers:
    """Readers with the key, who ask again and again until they are stopped."""

    PATHS = (
        "/api/meta",
        "/api/row?text=0&layer=0&head=1&row=200",
        "/api/tile?text=0&layer=1&head=0&z=0&i=0&j=0",
        "/web/main.js",
    )

    def __init__(self, attacked: Target, count: int) -> None:
        self.target = attacked
        self.expected = {path: attacked.get(path) for path in self.PATHS}
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(count)]

    def _read(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            path, start = self.PATHS[turn % len(self.PATHS)], time.monotonic()
            try:
                status, _, body = self.target.get(path)
                if (status, body) != (200, self.expected[path][2]):
                    self.failures.append(f"{path}: {status} {body[:200]!r}")
            except OSError as error:
                self.failures.append(f"{path}: {error!r}")
            except http.client.HTTPException as error:
                self.failures.append(f"{path}: {error!r}")
            self.seconds.append(time.monotonic() - start)
            turn += 1
            self._stop.wait(0.01)

    def __enter__(self) -> Readers:
        assert {answer[0] for answer in self.expected.values()} == {200}, "the server serves nobody"
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def reach(self, count: int) -> None:
        """Wait until they have read this often."""
        end = time.monotonic() + HANGING
        while len(self.seconds) < count:
            assert time.monotonic() < end, f"readers got {len(self.seconds)} answers instead of {count}"
            time.sleep(0.02)

    def check(self) -> None:
        """Raise if a reader was not served."""
        count, reads = len(self.failures), len(self.seconds)
        assert not self.failures, f"{count} of {reads} honest reads failed, as in {self.failures[0]}"


def be_silent(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Say nothing."""
    yield from ()


def send_head_slowly(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Send the head of a request byte by byte."""
    for byte in attacked.head("GET /api/meta HTTP/1.1", "X-Long: " + "x" * 10_000):
        yield bytes([byte])


def send_body_slowly(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Announce a body, with the key, and send it byte by byte."""
    yield attacked.head(
        "POST /api/capture HTTP/1.1", "Content-Type: application/json", "Content-Length: 90000", key=True
    )
    while True:
        yield b" "


def send_chunks_forever(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Send a body of chunks that does not end, without the key."""
    yield attacked.head(
        "POST /api/capture HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked"
    )
    while True:
        yield b"4\r\n    \r\n"


def never_read(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Ask for much, with the key, and read none of it."""
    yield attacked.head("GET /api/tile?text=0&layer=0&head=0&z=0&i=0&j=0 HTTP/1.1", key=True) * 8


def close_half(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Ask, say that nothing more will come, and stay."""
    yield attacked.head("GET /api/meta HTTP/1.1")
    client.shutdown(socket.SHUT_WR)


def send_long_line(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Send a header that does not end."""
    yield attacked.head("GET / HTTP/1.1")[:-2] + b"X: "
    while True:
        yield b"x" * 8192


def pipeline(attacked: Target, client: socket.socket) -> Iterator[bytes]:
    """Send many requests at once, without the key, and read none of the answers."""
    yield attacked.head("GET / HTTP/1.1", "Accept: text/html") * 50


Habit = Callable[[Target, socket.socket], Iterator[bytes]]
STRANGERS: tuple[Habit, ...] = (
    be_silent,
    send_head_slowly,
    send_chunks_forever,
    close_half,
    send_long_line,
    pipeline,
)
OWNERS: tuple[Habit, ...] = (send_body_slowly, never_read)
"""Habits with the key: their requests are served like any other, so that they may take a reader's place."""


class Crowd:
    """Hostile clients, each with a habit, which stay until they are sent away."""

    def __init__(self, attacked: Target, habits: list[Habit]) -> None:
        self.clients = []
        for habit in habits:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(HANGING)
            client.connect(("127.0.0.1", attacked.port))
            client.setblocking(False)
            self.clients.append((client, habit(attacked, client)))

    def act(self) -> None:
        """Let everyone send what comes next."""
        for client, sends in self.clients:
            with suppress(OSError):
                client.send(next(sends, b""))

    def leave(self) -> None:
        """Close what is still open."""
        for client, _ in self.clients:
            client.close()


def draw_crowd(draw: random.Random, count: int) -> list[Habit]:
    """Return drawn habits of so many clients, some of whom have the key."""
    owners = draw.choices(OWNERS, k=min(60, count // 4))
    return draw.sample([*owners, *draw.choices(STRANGERS, k=count - len(owners))], count)


def press(attacked: Target, habits: list[Habit], reads: int) -> dict[str, int | float]:
    """Let a crowd press while readers read; it must be gone, though nobody in it leaves."""
    before = attacked.descriptors()
    with Readers(attacked, 6) as readers:
        crowd = Crowd(attacked, habits)
        most = attacked.descriptors()
        end, gone = time.monotonic() + HANGING, False
        while not gone or len(readers.seconds) < reads:
            crowd.act()
            time.sleep(0.1)
            now = attacked.descriptors()
            most, gone = max(most, now), gone or now <= before + 2 * len(readers._threads)
            assert gone or time.monotonic() < end, f"{now} files are open, and {before} were before the crowd"
            readers.check()
        readers.reach(reads)
    readers.check()
    crowd.leave()
    assert most < DESCRIPTORS, f"the server has {most} files open"
    return {
        "hostile connections": len(habits),
        "honest reads beside them": len(readers.seconds),
        "worst seconds of a read": max(readers.seconds),
        "most files open": most,
    }


SMALL_ANSWER = "/api/row?text=0&layer=0&head=0&row=3"


def read_slowly(attacked: Target) -> float:
    """Ask and read at a few hundred bytes a second, and return the seconds; raise unless all of it comes."""
    start = time.monotonic()
    with closing(attacked.connect()) as client:
        request = attacked.head(f"GET {SMALL_ANSWER} HTTP/1.1", "Connection: close", key=True)
        for place in range(0, len(request), 25):
            client.sendall(request[place : place + 25])
            time.sleep(0.08)
        answer = b""
        while part := client.recv(50):
            answer += part
            time.sleep(0.08)
    assert answer.startswith(b"HTTP/1.1 200"), f"a slow reader got {answer[:300]!r}"
    headers, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r" % len(body) in headers, f"a slow reader got half of its answer: {answer!r}"
    return time.monotonic() - start


def mix_with_slow_readers(attacked: Target, slow: int, silent: int, reads: int) -> dict[str, int | float]:
    """Let slow readers read beside fast ones, and beside connections that are silent."""
    crowd = Crowd(attacked, [be_silent] * silent)
    with Readers(attacked, 6) as readers, ThreadPoolExecutor(slow) as pool:
        seconds = list(pool.map(read_slowly, [attacked] * slow))
        readers.reach(reads)
    crowd.leave()
    readers.check()
    return {
        "slow readers": slow,
        "reads beside slow readers": len(readers.seconds),
        "worst seconds of a read beside slow readers": max(readers.seconds),
        "worst seconds of a slow reader": max(seconds),
    }


def send_too_much(attacked: Target, sizes: list[int]) -> dict[str, int | float]:
    """Send bodies over the limit in every way: each is answered with a 413 that can be read."""
    sent = 0
    for size in sizes:
        for extra in ((), ("Connection: close",), ("Expect: 100-continue",)):
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
        statuses = Counter(clients.map(lambda number: send_drawn(attacked, seed, number), range(draws)))
    assert attacked.get("/api/meta")[0] == 200, "the server does not answer after the drawn requests"
    return {"drawn requests": draws, **{f"answered {status}": n for status, n in sorted(statuses.items())}}


def raise_own_limit(wanted: int) -> int:
    """Return how many connections this process can hold, after raising its own limit as far as it may."""
    if sys.platform == "win32":
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + 300 if hard == resource.RLIM_INFINITY else min(hard, wanted + 300)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return min(wanted, max(soft, most) - 300)


def attack(draws: int, seed: int) -> dict[str, int | float]:
    """Attack a server: with 1,000 draws and more, also with 2,000 connections and 1,500 reads at a time."""
    is_long = draws >= 1000
    draw = random.Random(seed)
    figures: dict[str, int | float] = {}
    with target(3.0 if is_long else 1.0) as attacked:
        figures |= guess(attacked)
        figures |= send_too_much(attacked, [1 << 21, 1 << 24] if is_long else [1 << 21])
        figures |= send_drawn_requests(attacked, draws, seed)
        crowds: dict[str, list[Habit]] = {
            "silent": [be_silent] * 330,
            "mixed": draw_crowd(draw, 330 if is_long else 64),
        }
        if is_long:
            many = raise_own_limit(2000)
            crowds |= {habit.__name__: [habit] * 400 for habit in STRANGERS}
            crowds |= {habit.__name__: [habit] * 60 for habit in OWNERS}
            crowds |= {"many silent": [be_silent] * many, "many mixed": draw_crowd(draw, many)}
        for name, habits in crowds.items():
            try:
                pressed = press(attacked, habits, 1500 if is_long else 40)
            except AssertionError as failure:
                raise AssertionError(f"seed {seed}, crowd {name}: {failure}") from failure
            figures |= {f"{name}: {figure}": value for figure, value in pressed.items()}
        slow, silent = (50, 330) if is_long else (6, 60)
        figures |= mix_with_slow_readers(attacked, slow, silent, 1500 if is_long else 40)
    return figures


if __name__ == "__main__":
    serve(float(sys.argv[1]))
