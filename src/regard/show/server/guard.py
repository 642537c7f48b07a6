"""Access control: which requests are answered, and what a browser may do with the answers.

Nobody without the server's secret may see anything: neither other users of this machine nor, if the server is
bound to another address than loopback, other machines. Pages of other origins must not be able to request
anything, not even through a host name of their own that points at this machine (DNS rebinding). So the Host
header must name the address that the server is bound to, a POST must come from the server's own page, and
nothing is shared with other origins. Anyone on the machine can connect to a port of loopback, so the page
needs a secret there, too. The *token* stands in the address that is printed; the page keeps it in its
origin's storage and sends it in a header with every question. A *cookie* opens the page's own files and
nothing more: browsers send cookies to every port of a host, so that another user's server may get to see it.
A *ticket* is exchanged for the token, by clients of this user only: the command line that opens a browser is
visible to every user of the machine. This file knows HTTP's headers and sockets; it does not know what is
served.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.show.server.limits import RefusedError

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
    return len(values) == 1 and _match(values[0], secret)


def _match(value: str, secret: str) -> bool:
    """Compare a value with a secret in a time that does not depend on where they differ."""
    return hmac.compare_digest(value.encode("utf-8", "surrogatepass"), secret.encode())


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # The address holds the token, which no Referer header may repeat.
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Texts and secrets must not stay in the browser's cache on disk.
    "cache-control": "no-store",
}
OTHER_PAGE = "this request comes from another page: only the server's own page may send requests"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that is bound to `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class BoundAddress:
    """The address that the server is bound to, and its secrets."""

    host: str
    port: int
    secrets: AccessSecrets = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secrets", AccessSecrets(self.port))

    @property
    def origin(self) -> str:
        """The address without a secret."""
        # A wildcard is an address to bind to, and not one to open.
        wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        host = wildcards.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{host}:{self.port}/"

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"{self.origin}?token={self.secrets.token}"

    @property
    def ticket_address(self) -> str:
        """The address for a command line, which others can see: only processes of this user can use it."""
        return f"{self.origin}?ticket={self.secrets.ticket}" if can_tell_users() else self.address

    @property
    def hosts(self) -> set[str]:
        """The Host headers that name this server: its own address and the names of loopback."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        names = {own.lower(), "127.0.0.1", "localhost", "[::1]"}
        # Browsers leave out the port of HTTP's default.
        return {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())


class NoSecretError(RefusedError):
    """A request without the secret that it needs."""

    def __init__(self) -> None:
        super().__init__(
            403,
            "expected the server's secret, got none or another one: open the whole address, with ?token=…, "
            "that was printed when the server started",
        )


class Guard:
    """ASGI middleware that refuses requests that are not allowed and adds security headers to all answers."""

    def __init__(self, app: ASGIApp, bound_address: BoundAddress) -> None:
        self.app, self.bound_address, self.secrets = app, bound_address, bound_address.secrets
        self.refusal_page = RefusalPage()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing here uses WebSockets, and browsers send them across origins without asking.
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_entering = _is_page(scope) and self.secrets.open_page(scope["query_string"])

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    # setdefault: the refusal page has a policy of its own.
                    headers.setdefault(name, value)
                if is_entering and message["status"] == 200:
                    headers.append("set-cookie", self.secrets.set_cookie)
            await send(message)

        answer = self._answer_at_the_door(scope, is_entering)
        if answer is None:
            await self.app(scope, receive, with_headers)
        else:
            await answer(scope, receive, with_headers)

    def _answer_at_the_door(self, scope: Scope, is_entering: bool) -> Response | None:
        """Return the answer to a request that the application does not see, or None."""
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if _is_page(scope) and self.secrets.redeem(scope["query_string"], scope.get("client")):
                return RedirectResponse(f"/?token={self.secrets.token}", 303)
            if not is_entering:
                self._check_secret(scope, headers)
            self._check_origin(scope, headers)
        except NoSecretError as refusal:
            wants_page = "text/html" in headers.get("accept", "")
            return self.refusal_page.response() if wants_page else _refuse(refusal)
        except RefusedError as refusal:
            return _refuse(refusal)
        return None

    def _check_host(self, headers: Headers) -> None:
        """Refuse a request for a name that is not this server's; names of other addresses are not known."""
        is_named = headers.get("host", "").lower() in self.bound_address.hosts
        if is_loopback(self.bound_address.host) and not is_named:
            raise RefusedError(421, f"host: this server answers only to {self.bound_address.origin}")

    def _check_secret(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request without its secret: the page's own files need the cookie, all else the token."""
        is_file = scope["path"] == "/" or scope["path"].startswith("/web/")
        has_secret = self.secrets.open_files(headers) if is_file else self.secrets.open_data(headers)
        # With another token in its address, the page would keep that one.
        if not has_secret or (_is_page(scope) and parameters(scope["query_string"], "token")):
            raise NoSecretError

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        if scope["method"] == "POST":
            origin = headers.get("origin")
            # Clients that are no browsers, as curl, send no Origin; a browser always does with a POST.
            if origin is not None and origin.lower() != f"http://{headers.get('host', '').lower()}":
                raise RefusedError(403, OTHER_PAGE)
            # Another page can send a form without asking first (CORS), but never of this type.
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RefusedError(415, "content-type: expected application/json")
        # "/" may be opened by a link on another page.
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            raise RefusedError(403, OTHER_PAGE)


class RefusalPage:
    """The page for a reader without the secret. It has no files: they need a secret as well."""

    def __init__(self) -> None:
        self.text = (Path(__file__).parent.parent / "web" / "refusal.html").read_text("utf-8")
        style = re.findall(r"<style>(.*?)</style>", self.text, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self.policy = POLICY.replace("style-src 'self'", f"style-src 'sha256-{digest}'")

    def response(self) -> Response:
        """Return the page as a response."""
        return HTMLResponse(self.text, 403, {"content-security-policy": self.policy})


def _is_page(scope: Scope) -> bool:
    return scope["path"] == "/" and scope["method"] in ("GET", "HEAD")


def _refuse(refusal: RefusedError) -> Response:
    return JSONResponse({"error": str(refusal)}, refusal.status)
