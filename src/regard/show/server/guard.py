"""Who may talk to the server, and what a browser may do with its answers.

A page from elsewhere must not be able to ask for anything, not even by pointing a name of its own at this
machine (DNS rebinding). So the Host of a request must be the address that the server is bound to, a POST must
come from its own page, and nothing is shared with other origins. Bound to anything but loopback, every
address begins with a secret. This file knows HTTP's headers; it does not know what is served.
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class BoundAddress:
    """Where the server is bound, and the secret that stands in its address if others can reach it."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    @classmethod
    def at(cls, host: str, port: int) -> BoundAddress:
        return cls(host, port, "" if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def address(self) -> str:
        """What to open in a browser."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        host = anywhere.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{host}:{self.port}/" + (f"{self.token}/" if self.token else "")

    @property
    def hosts(self) -> set[str]:
        """The Host headers that name this server: its own address and the names of loopback."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        names = {own.lower(), "127.0.0.1", "localhost", "[::1]"}
        return {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())


class Guard:
    """Stands before an application: answers what is not allowed, and adds the headers to what is."""

    def __init__(self, app: ASGIApp, door: BoundAddress) -> None:
        self.app, self.door = app, door

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
            scope = self._admitted(scope)
        except RefusedError as refusal:
            answer = JSONResponse({"error": str(refusal)}, refusal.status)
            await answer(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _admitted(self, scope: Scope) -> Scope:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if self.door.token:
            scope = self._past_the_token(scope)
        elif host not in self.door.hosts:
            raise RefusedError(421, f"this server is {self.door.address} and answers to no other name")
        if scope["method"] == "POST":
            origin = headers.get("origin")
            if origin is not None and origin.lower() != f"http://{host}":
                raise RefusedError(
                    403, "this request comes from another page, which may not ask for anything"
                )
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RefusedError(415, "content-type: expected application/json")
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            raise RefusedError(403, "this request comes from another page, which may not ask for anything")
        return scope

    def _past_the_token(self, scope: Scope) -> Scope:
        """The request without the secret at the front of its path; refused if there is another or none."""
        given, slash, rest = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode(), self.door.token.encode()):
            raise RefusedError(
                403, "this server can be reached from elsewhere: use the whole address it printed"
            )
        if not slash:
            raise RefusedError(404, "the address ends in a slash")
        return {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
