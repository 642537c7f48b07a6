"""The secrets of a server, and which of them a request needs.

Anyone on the machine can connect to a port of loopback, so the page needs a secret there, too. The *token*
stands in the address that is printed; the page keeps it in its origin's storage and sends it in a header with
every question. A *cookie* opens the page's own files and nothing more: browsers send cookies to every port of
a host, so that another user's server may get to see it. A *ticket* is exchanged for the token, by clients of
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


class AccessSecrets:
    """The secrets of one server, drawn when it starts.

    Arguments:
        port: the server's port, which is part of the cookie's name: ports share their cookies.
    """

    def __init__(self, port: int) -> None:
        self.port, self.cookie_name = port, f"regard-{port}"
        self.token, self.cookie, self.ticket = (secrets.token_urlsafe(24) for _ in range(3))

    @property
    def set_cookie(self) -> str:
        """The header that gives a browser the cookie. It ends with the browser's session."""
        return f"{self.cookie_name}={self.cookie}; Path=/; HttpOnly; SameSite=Strict"

    def open_page(self, query: bytes) -> bool:
        """Return whether the query of an address holds the token."""
        return _match_once(parameters(query, "token"), self.token)

    def redeem(self, query: bytes, client: tuple[str, int] | None) -> bool:
        """Return whether the query holds the ticket, and the client is a process of this user."""
        return _match_once(parameters(query, "ticket"), self.ticket) and is_own_process(client, self.port)

    def open_files(self, headers: Headers) -> bool:
        """Return whether a request may have the page's own files. Other ports may have added cookies."""
        pairs = [pair.strip() for line in headers.getlist("cookie") for pair in line.split(";")]
        prefix = f"{self.cookie_name}="
        values = [pair.removeprefix(prefix) for pair in pairs if pair.startswith(prefix)]
        # A list and not a generator: any() would stop at the first match, and the time would tell which.
        return any([_match(value, self.cookie) for value in values]) or self.open_data(headers)

    def open_data(self, headers: Headers) -> bool:
        """Return whether a request may have anything: it has one Authorization header, with the token."""
        return _match_once(headers.getlist("authorization"), f"Bearer {self.token}")


def can_tell_users() -> bool:
    """Return whether this system says whose a connection is."""
    # Windows has no geteuid, macOS no /proc/net/tcp: there the printed address is opened.
    return hasattr(os, "geteuid") and SOCKETS[0].exists()


def is_own_process(client: tuple[str, int] | None, port: int) -> bool:
    """Return whether the socket of a client on this machine, connected to `port`, belongs to this user."""
    if client is None or not can_tell_users():
        return False
    rows = [line.split() for table in SOCKETS if table.exists() for line in table.read_text().splitlines()]
    # Both ports: the table also lists the server's own socket and other connections.
    owners = {row[7] for row in rows if (_port(row[1]), _port(row[2])) == (client[1], port)}
    return owners == {str(os.geteuid())}


def _port(endpoint: str) -> int:
    """Return the port of an endpoint as Linux writes it, such as 0100007F:1F90; -1 in the table's heading."""
    digits = endpoint.rpartition(":")[2]
    return int(digits, 16) if ":" in endpoint else -1


def parameters(query: bytes, name: str) -> list[str]:
    """Return the values of a parameter in a query."""
    # latin-1 decodes any bytes: a query may hold whatever a client sends.
    return parse_qs(query.decode("latin-1"), keep_blank_values=True).get(name, [])


def _match_once(values: list[str], secret: str) -> bool:
    """Return whether there is one value, and it is the secret."""
    return len(values) == 1 and _match(values[0], secret)


def _match(value: str, secret: str) -> bool:
    """Compare a value with a secret in a time that does not depend on where they differ."""
    return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), secret.encode())
