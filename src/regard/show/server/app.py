"""The page over HTTP: its own files, and a small application that passes requests on to `answers`.

The event loop only passes requests on. A few threads compute the answers, and a request whose client has
disconnected is dropped. Jobs of the model run one at a time and send lines of JSON as they go. This file
knows HTTP; it does not know what is answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from regard.show.saved.bundle import bundle_modules, bundle_styles, link_bundles
from regard.show.server.answers import PATIENT, Answers, Json, log_failure
from regard.show.server.jobs import ModelJob
from regard.show.server.limits import ExclusiveJob, Limits, RefusedError
from regard.show.server.line_stream import AS_IT_IS, stream, wait_for_disconnect
from regard.show.server.work_queue import WorkQueue

EARLY = "source/early_meta"


@cache
def page_files() -> dict[str, Response]:
    """Return the page's static files by their paths: these and no others are ever served."""
    return {
        "/": Response(link_bundles(), media_type="text/html"),
        "/web/early.js": Response(bundle_modules(EARLY), media_type="text/javascript"),
        "/web/main.js": Response(bundle_modules("served_page", after=EARLY), media_type="text/javascript"),
        "/web/style.css": Response(bundle_styles(), media_type="text/css"),
    }


def asset_routes() -> list[Route]:
    """Return a route for each of the page's files."""
    return [Route(path, _answer_asset) for path in page_files()]


async def _answer_asset(request: Request) -> Response:
    file = page_files()[request.scope["path"]]
    return Response(file.body, media_type=file.media_type)


class Site(Answers):
    """Everything that is served: the answers to the page's requests, and the page's files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model_job = ExclusiveJob()
        self.workers = WorkQueue(self.limits.workers)
        self.workers.submit(False, self.contents.prepare_first_view)  # while the browser opens

    def application(self) -> Starlette:
        """Return the ASGI application."""
        computed = [Route(f"/api/{name}", self._computed(name)) for name in self.computed]
        jobs = [Route(f"/api/{name}", self._job(name), methods=["POST"]) for name in self.jobs]
        opening = Route("/api/opening", _answer_opened, methods=["POST"])  # see `opening_site`
        return make_application([*asset_routes(), opening, *computed, *jobs])

    def close(self) -> None:
        """Compute nothing more."""
        self.workers.shutdown()

    def _computed(self, name: str) -> Callable[[Request], Any]:
        """Return an endpoint whose answer a worker computes, unless the client disconnects first."""

        def compute(request: Request) -> Response:
            return respond(self.compute(name, request.query_params))

        async def answer(request: Request) -> Response:
            response = asyncio.wrap_future(self.workers.submit(name in PATIENT, compute, request))
            disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
            try:
                either: set[asyncio.Future[Any]] = {response, disconnect}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                # 499 is nginx' status for a client that has gone; HTTP has none.
                return await response if response.done() else Response(status_code=499)  # nobody reads it
            finally:
                disconnect.cancel()
                response.cancel()  # the work is dropped if no worker has begun it, its result otherwise

        return answer

    def _job(self, name: str) -> Callable[[Request], Any]:

        async def answer(request: Request) -> Response:
            job = self.prepare(name, await read_body(request, self.limits))
            return stream(job, self.model_job) if isinstance(job, ModelJob) else respond(job)

        return answer


def make_application(routes: Sequence[Route]) -> Starlette:
    """Return an ASGI application with these routes, whose errors are sentences in JSON."""
    application = Starlette(
        routes=routes,
        # 6 and not 9: answers are compressed as they are asked for.
        middleware=[Middleware(GZipMiddleware, minimum_size=1 << 10, compresslevel=6)],
        exception_handlers={
            RefusedError: _answer_refused,
            HTTPException: _answer_not_found,
            Exception: _answer_failed,
        },
    )
    application.router.redirect_slashes = False
    return application


async def read_body(request: Request, limits: Limits) -> Any:
    """Read a request's JSON, or None if it is none, without ever holding more than the limit."""
    too_large = RefusedError(413, f"expected a request of at most {limits.body:,} bytes, got a larger one")
    # A chunked request has no such header: the stream is counted as well.
    if int(request.headers.get("content-length", "0")) > limits.body:  # h11 guarantees a number
        raise too_large
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > limits.body:
                raise too_large
    except ClientDisconnect:
        raise RefusedError(499, "the client disconnected") from None  # nobody reads it
    try:
        return json.loads(body)
    # RecursionError: a body of 100,000 brackets is valid JSON.
    except (ValueError, RecursionError):
        return None


def respond(answer: Json | bytes, status: int = 200) -> Response:
    """Return an answer as a response; floating-point numbers hardly compress."""
    if isinstance(answer, Json):
        return Response(answer.encode(), status, media_type="application/json")
    return Response(answer, status, AS_IT_IS, media_type="application/octet-stream")


async def _answer_opened(request: Request) -> Response:
    return respond(Json({"ready": True}))


async def _answer_refused(request: Request, refusal: Exception) -> Response:
    status = getattr(refusal, "status", 500)
    if status == 410 and request.method == "GET":  # of a removed text, which the page does not show any more
        return Response(status_code=204)  # browsers report a 410 as an error
    return respond(Json({"error": str(refusal)}), status)


async def _answer_not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    messages = {404: "there is nothing at this address", 405: "this address does not accept this method"}
    return respond(Json({"error": messages.get(status, str(error))}), status)


async def _answer_failed(request: Request, error: Exception) -> Response:
    return respond(Json({"error": log_failure(request.url.path, error)}), 500)
