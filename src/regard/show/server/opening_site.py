"""A site that is served before there is something to show, and what it tells of its progress.

The page opens at once. While a model is opened and reads, `/api/opening` streams how far that is, requests
for numbers wait, and `/api/cancel` ends it. Then the site itself takes over, or a sentence says what failed.
This file knows HTTP and threads; it does not know what is being opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.show.server.answers import Json
from regard.show.server.app import Site, asset_routes, make_application, page_files, read_body, respond
from regard.show.server.jobs import Line
from regard.show.server.limits import Limits, RefusedError, StoppedError
from regard.show.server.line_stream import Follower, LinesResponse

POLL = 0.05  # seconds between two looks of a waiting request at whether there is something to show
CANCELLED = "It was cancelled on the page. Start the command again to read a text."


@dataclass
class OpeningSite:
    """A site to be: it reports progress until `open` gives it what is served, or `fail` says why not.

    Arguments:
        limits: bounds on requests.
        on_cancel: called when a reader cancels the opening, from the server's thread.
    """

    limits: Limits = field(default_factory=Limits)
    on_cancel: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.site: Site | None = None
        self.problem = ""
        self.was_followed = threading.Event()
        self._line: Line = {"progress": {"doing": "opening", "done": 0, "of": 0}}
        self._followers: list[Follower] = []
        self._lock = threading.Lock()
        self._opened: ASGIApp | None = None
        page_files()  # the first request need not wait for the bundle

    def report(self, doing: str, done: int, of: int) -> None:
        """Tell the pages what is being done and how much of it is; `StoppedError` if it was cancelled."""
        if self.problem:
            raise StoppedError
        with self._lock:
            self._line = {"progress": {"doing": doing, "done": done, "of": of}}
            self._followers = [one for one in self._followers if not one.disconnected.is_set()]
            for follower in self._followers:
                follower.put(self._line)

    def open(self, site: Site) -> None:
        """Serve a site from now on."""
        self.site, self._opened = site, site.application()
        self._end({"ready": True})

    def fail(self, problem: str) -> None:
        """Tell the pages in a sentence why there is nothing to show."""
        self.problem = problem
        self._end({"error": problem})

    def _end(self, line: Line) -> None:
        with self._lock:
            self._line = line
            for follower in self._followers:
                follower.put(line, None)
            self._followers = []

    def close(self) -> None:
        """Compute nothing more."""
        if self.site is not None:
            self.site.close()

    def application(self) -> ASGIApp:
        """Return the ASGI application."""
        own = make_application(
            [
                *asset_routes(),
                Route("/api/opening", self._follow, methods=["POST"]),
                Route("/api/cancel", self._cancel, methods=["POST"]),
                Route("/{path:path}", self._refuse, methods=["GET", "HEAD", "POST"]),
            ]
        )

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            is_own = scope["path"] in ("/api/opening", "/api/cancel")
            # A request for numbers waits; one for the model's work is refused, since the model is busy.
            if scope["path"].startswith("/api/") and scope["method"] in ("GET", "HEAD") and not is_own:
                while self._opened is None and not self.problem:
                    await asyncio.sleep(POLL)
            app = own if is_own or self._opened is None else self._opened
            await app(scope, receive, send)

        return serve

    async def _follow(self, request: Request) -> Response:
        await read_body(request, self.limits)
        follower = Follower()
        with self._lock:
            has_ended = self.site is not None or bool(self.problem)
            if not has_ended:
                self._followers.append(follower)
            follower.put(self._line, *([None] if has_ended else []))
        self.was_followed.set()
        return LinesResponse(follower)

    async def _cancel(self, request: Request) -> Response:
        await read_body(request, self.limits)
        if self.site is not None:
            raise RefusedError(409, "there is nothing to cancel: the page is open")
        if not self.problem:
            self.fail(CANCELLED)
            self.on_cancel()
        return respond(Json({}))

    async def _refuse(self, request: Request) -> Response:
        if self.problem:
            raise RefusedError(503, self.problem)
        if request.url.path.startswith("/api/"):
            raise RefusedError(409, "the model is busy with the first text: try again when it is done")
        raise RefusedError(404, "there is nothing at this address")
