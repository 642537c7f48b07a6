"""A client of the page's server: requests with the key and without it, and connections that are left open."""

import http.client
import json
import socket
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import numpy as np
import torch

from tests.patience import HANGING


class Answer:
    """The answer to a request, read to its end."""

    def __init__(self, response):
        self.status, self.headers = response.status, {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def lines(self):
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def floats(self):
        return torch.from_numpy(np.frombuffer(self.body, "<f4").copy())


def bearer(running):
    return {"authorization": f"Bearer {_address(running).partition('?token=')[2]}"}


def _address(running):
    return running if isinstance(running, str) else running.address


@contextmanager
def begin(running, path, *, method="GET", body=None, headers=None, key=True):
    """A response of which nothing is read yet."""
    headers = {**(bearer(running) if key else {}), **(headers or {})}
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {"content-type": "application/json", **headers}
    port = urlsplit(_address(running)).port
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HANGING)) as connection:
        connection.request("POST" if body is not None else method, path, body, headers)
        with connection.getresponse() as response:
            yield response


def ask(running, path, **options):
    with begin(running, path, **options) as response:
        return Answer(response)


def head(running, line, *headers):
    """The head of a request with the key."""
    own = [
        f"Host: 127.0.0.1:{running.bound_address.port}",
        *(f"{k}: {v}" for k, v in bearer(running).items()),
    ]
    return "\r\n".join([f"{line} HTTP/1.1", *own, *headers, "", ""]).encode()


def connect(running, sent=b""):
    """A connection on which this was sent, and of which nothing is read."""
    client = socket.create_connection(("127.0.0.1", running.bound_address.port), timeout=HANGING)
    client.sendall(sent)
    return client


def post(running, path, body, length=None):
    """A request with a body, which may announce another length than it has."""
    length = len(body) if length is None else length
    return head(running, f"POST {path}", "Content-Type: application/json", f"Content-Length: {length}") + body
