"""The secrets of a server, and which of them a request needs.

Anyone on the machine can connect to a port of loopback, so the page needs a key there, too. The *token* stands
in the address that is printed; the page keeps it in its origin's storage and sends it in a header with every
question. A *cookie* opens the page's own files and nothing more: browsers send cookies to every port of a
host, so that another user's server may get to see it. A *ticket* is exchanged for the token, by clients of
this user only: the command line that opens a browser is visible to every user of the machine.

This file knows headers and sockets; it does not know what is served.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers

SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's tables of sockets with their owners."""


class Keys:
    """The secrets of one server, drawn when it starts.

    Arguments:
        port: the server's port, which is part of the cookie's name: ports share their cookies.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.token, self.cookie, self.ticket = (secrets.token_urlsafe(24) for _ in range(3))

    @property
    def set_cookie(self) -> str:
        """The header that gives a browser the cookie. It ends with the browser's session."""
        return f"regard-{self.port}={self.cookie}; Path=/; HttpOnly; SameSite=Strict"

    def open_page(self, query: bytes) -> bool:
        """Return whether the query of an address holds the token, once."""
        return _matches(_parameter(query, "token"), self.token)

    def redeem(self, query: bytes, client: tuple[str, int] | None) -> bool:
        """Return whether the query holds the ticket, and the client is a process of this user."""
        return _matches(_parameter(query, "ticket"), self.ticket) and is_own_process(client, self.port)

    def open_files(self, headers: Headers) -> bool:
        """Return whether a request may have the page's own files."""
        name = f"regard-{self.port}"
        cookies = [
            part.strip().partition("=") for line in headers.getlist("cookie") for part in line.split(";")
        ]
        matching = [_matches(value, self.cookie) for key, _, value in cookies if key == name]
        return any(matching) or self.open_data(headers)

    def open_data(self, headers: Headers) -> bool:
        """Return whether a request may have anything: it has one Authorization header, with the token."""
        values = headers.getlist("authorization")
        scheme, _, value = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        return scheme.lower() == "bearer" and _matches(value, self.token)


def can_tell_users() -> bool:
    """Return whether this system says whose a connection is."""
    return hasattr(os, "getuid") and SOCKETS[0].exists()


def is_own_process(client: tuple[str, int] | None, port: int) -> bool:
    """Return whether the socket of a client on this machine, connected to `port`, belongs to this user."""
    if client is None or not can_tell_users():
        return False
    owners = {
        int(fields[7])
        for table in SOCKETS
        if table.exists()
        for fields in (line.split() for line in table.read_text().splitlines()[1:])
        if (_port(fields[1]), _port(fields[2])) == (client[1], port)
    }
    return owners == {os.getuid()}


def _port(endpoint: str) -> int:
    """Return the port of an endpoint as Linux writes it, such as 0100007F:1F90."""
    return int(endpoint.rpartition(":")[2], 16)


def _parameter(query: bytes, name: str) -> str:
    """Return the value of a parameter that stands in a query once, or an empty string."""
    values = (
        parse_qs(query.decode("latin-1"), max_num_fields=100).get(name, []) if name.encode() in query else []
    )
    return values[0] if len(values) == 1 else ""


def _matches(value: str, secret: str) -> bool:
    """Compare a value with a secret in a time that does not depend on where they differ."""
    return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), secret.encode())
