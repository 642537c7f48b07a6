"""Access control: which requests are answered, and what a browser may do with the answers.

Pages of other origins must not be able to request anything, not even through a host name of their own that
points at this machine (DNS rebinding). So the Host header must name the address that the server is bound to,
a POST must come from the server's own page, and nothing is shared with other origins. If the server is bound
to anything but loopback, every path begins with a secret. This file knows HTTP's headers; it does not know
what is served.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.show.server.limits import RefusedError

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
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
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
    """The address that the server is bound to, and the secret in its path if other machines can reach it."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    @classmethod
    def at(cls, host: str, port: int) -> BoundAddress:
        """Return the address, with a new secret unless the host is loopback."""
        return cls(host, port, "" if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        host = wildcards.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{host}:{self.port}/" + (f"{self.token}/" if self.token else "")

    @property
    def hosts(self) -> set[str]:
        """The Host headers that name this server: its own address and the names of loopback."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        names = {own.lower(), "127.0.0.1", "localhost", "[::1]"}
        return {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())


class Guard:
    """ASGI middleware that refuses requests that are not allowed and adds security headers to all answers."""

    def __init__(self, app: ASGIApp, bound_address: BoundAddress) -> None:
        self.app, self.bound_address = app, bound_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            scope = self._admit(scope)
        except RefusedError as refusal:
            answer = JSONResponse({"error": str(refusal)}, refusal.status)
            await answer(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _admit(self, scope: Scope) -> Scope:
        """Return the request without its secret, or raise `RefusedError`."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if self.bound_address.token:
            scope = self._strip_token(scope)
        elif host not in self.bound_address.hosts:
            raise RefusedError(421, f"host: this server answers only to {self.bound_address.address}")
        if scope["method"] == "POST":
            origin = headers.get("origin")
            if origin is not None and origin.lower() != f"http://{host}":
                raise RefusedError(403, OTHER_PAGE)
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RefusedError(415, "content-type: expected application/json")
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            raise RefusedError(403, OTHER_PAGE)
        return scope

    def _strip_token(self, scope: Scope) -> Scope:
        """Remove the secret from the front of the path; refuse a request with another one or none."""
        token, slash, rest = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.bound_address.token.encode()):
            raise RefusedError(
                403, "the address needs the server's secret: use the whole address that it printed"
            )
        if not slash:
            raise RefusedError(404, "the address must end in a slash")
        return {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
