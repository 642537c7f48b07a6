"""The page over HTTP: a small application that computes what the page requests, on demand.

The event loop only passes requests on. A few threads compute the answers, and a request whose client has
disconnected is dropped. Reading a new text, running the model again with cuts and generating need a model:
the caller supplies functions for them, which run one at a time and send lines of JSON as they go. This file
knows HTTP and `Contents`; it does not know models.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.escapes import escape
from regard.recorder import Capture
from regard.show.data.contents import Contents, EditedRun
from regard.show.data.cuts import Cut, parse_cuts
from regard.show.data.quantity import Quantity
from regard.show.server.limits import ExclusiveJob, Limits, RefusedError, check_number, check_text
from regard.show.server.line_stream import (
    Line,
    ReportProgress,
    SendLine,
    stream,
    translate_errors,
    wait_for_disconnect,
)

MAX_NUMBER = 1 << 31  # of any number in a request


class Read(Protocol):
    """A function that runs a model on a text and captures it, reporting its progress."""

    def __call__(self, text: str, report: ReportProgress, /) -> Capture: ...


class RunCut(Protocol):
    """A function that runs a model again on a captured text with some of it cut, and captures that run."""

    def __call__(self, capture: Capture, cuts: Sequence[Cut], report: ReportProgress, /) -> Capture: ...


class Generate(Protocol):
    """A function that continues a text; every item is a line for the page (see `regard.gpt.cache_demo`)."""

    def __call__(self, text: str, *, tokens: int, window: int, sinks: int) -> Iterable[Line]: ...


@dataclass(frozen=True)
class Asset:
    """A static file of the page, read when the server starts."""

    content: bytes
    kind: str  # its media type


def page_files() -> dict[str, Asset]:
    """Return the page's static files by their paths: these and no others are ever served."""
    folder = Path(__file__).parent.parent / "web"
    kinds = {".js": "text/javascript", ".css": "text/css"}
    files = {
        f"/web/{path.relative_to(folder).as_posix()}": Asset(path.read_bytes(), kinds[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in kinds
    }
    return {"/": Asset((folder / "index.html").read_bytes(), "text/html"), **files}


@dataclass
class Site:
    """Everything that is served: the page's files, the captures, and what a model can do.

    Arguments:
        contents: the captures to show.
        read: captures a new text; None if there is no model.
        generate: continues a text; None if there is no model that can.
        run_cut: runs the model again with some of it cut; None without a model.
        limits: bounds on requests.
    """

    contents: Contents
    read: Read | None = None
    generate: Generate | None = None
    run_cut: RunCut | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.assets = page_files()
        self.model_job = ExclusiveJob()
        self.workers = ThreadPoolExecutor(self.limits.workers, "regard-page")
        self.waiting = 0
        self.contents.can |= {
            "capture": self.read is not None,
            "generate": self.generate is not None,
            "cut": self.run_cut is not None,
        }
        self.contents.forget_meta()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        files = [Route(path, self._asset) for path in self.assets]
        computed = {
            "meta": self._meta,
            "thumbs": self._thumbs,
            "sinks": self._sinks,
            "heads": self._heads,
            "attribution": self._attribution,
            "tile": self._tile,
            "row": self._row,
            "column": self._column,
            "steps": self._steps,
            "eviction": self._eviction,
            "prediction": self._prediction,
        }
        answers = [Route(f"/api/{name}", self._computed(compute)) for name, compute in computed.items()]
        jobs = [
            Route("/api/capture", self._capture, methods=["POST"]),
            Route("/api/generate", self._generate, methods=["POST"]),
            Route("/api/cut", self._cut, methods=["POST"]),
            Route("/api/undo", self._undo, methods=["POST"]),
        ]
        application = Starlette(
            routes=[*files, *answers, *jobs],
            exception_handlers={
                RefusedError: _answer_refused,
                HTTPException: _answer_not_found,
                Exception: _answer_failed,
            },
        )
        application.router.redirect_slashes = False
        return application

    async def _asset(self, request: Request) -> Response:
        asset = self.assets[request.scope["path"]]
        return Response(asset.content, media_type=asset.kind)

    def _computed(self, compute: Callable[[Query], Response]) -> Callable[[Request], Any]:
        """Return an endpoint whose answer a worker computes, unless the client disconnects first."""

        async def answer(request: Request) -> Response:
            if self.waiting >= self.limits.waiting:
                raise RefusedError(503, "the server is busy with other requests: try again in a moment")
            query = Query(request.query_params)
            self.waiting += 1
            response = asyncio.wrap_future(self.workers.submit(translate_errors, compute, query))
            disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
            try:
                either: set[asyncio.Future[Any]] = {response, disconnect}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                return await response if response.done() else Response(status_code=499)  # nobody reads it
            finally:
                self.waiting -= 1
                disconnect.cancel()
                response.cancel()  # the work is dropped if no worker has begun it, its result otherwise

        return answer

    def _meta(self, query: Query) -> Response:
        return Json(self.contents.meta)

    def _thumbs(self, query: Query) -> Response:
        return _binary(self.contents.thumbnail(query.number("text"), query["layer"]).thumbs.tobytes())

    def _sinks(self, query: Query) -> Response:
        return Json(self.contents.thumbnail(query.number("text"), query["layer"]).sinks)

    def _heads(self, query: Query) -> Response:
        return Json(self.contents.heads(query.number("text")))

    def _attribution(self, query: Query) -> Response:
        return Json(self.contents.attribution(query.number("text"), query.quantity))

    def _tile(self, query: Query) -> Response:
        text, head, z, i, j = (query.number(name) for name in ("text", "head", "z", "i", "j"))
        without = query.number("without") if "without" in query else None
        mass, peak = self.contents.tile(text, query["layer"], head, z, i, j, without, query.quantity)
        return _binary(_floats(mass) + _floats(peak))

    def _row(self, query: Query) -> Response:
        text, row = query.number("text"), query.number("row")
        return _binary(_floats(self.contents.row(text, query["layer"], query.head, row, query.quantity)))

    def _column(self, query: Query) -> Response:
        text, col = query.number("text"), query.number("col")
        return _binary(_floats(self.contents.column(text, query["layer"], query.head, col, query.quantity)))

    def _steps(self, query: Query) -> Response:
        text, head, row = (query.number(name) for name in ("text", "head", "row"))
        return Json(self.contents.steps(text, query["layer"], head, row))

    def _eviction(self, query: Query) -> Response:
        return Json(self.contents.eviction(query.number("text"), query["layer"]))

    def _prediction(self, query: Query) -> Response:
        return Json(self.contents.prediction(query.number("text"), query.number("position")))

    async def _capture(self, request: Request) -> Response:
        if self.read is None:
            raise RefusedError(404, "this page shows a capture without a model, so it cannot read new texts")
        read, body = self.read, await _read_body(request, self.limits)
        text = check_text(body.get("text"), self.limits)
        contents = self.contents
        if len(contents.texts) - len(contents.edited) - len(contents.removed) >= self.limits.texts:
            raise RefusedError(
                409,
                f"the page already holds {self.limits.texts} texts, which is its limit: restart the server",
            )

        def work(send_line: SendLine) -> None:
            capture = read(text, _progress(send_line))
            tokens = max((layer.shape[3] for layer in capture.layers), default=0)
            if tokens > self.limits.tokens:
                raise RefusedError(
                    413, f"text: expected at most {self.limits.tokens:,} tokens, got {tokens:,}"
                )
            send_line({"text": self.contents.add(capture)})

        return stream(self.model_job, "reading a text", work)

    async def _cut(self, request: Request) -> Response:
        """Run the model again on a text with cuts; this run takes the place of the text's earlier one."""
        if self.run_cut is None:
            raise RefusedError(404, "this page has no model that could run with something cut")
        run_cut, body = self.run_cut, await _read_body(request, self.limits)
        contents, number = self.contents, check_number("text", body.get("text"), 0, MAX_NUMBER)

        def find(number: int) -> tuple[int, list[Cut]]:
            contents.check_text(number)
            text = contents.edited[number].text if number in contents.edited else number
            return text, parse_cuts(body.get("cuts"), contents.texts[text])

        text, cuts = translate_errors(find, number)

        def work(send_line: SendLine) -> None:
            capture = run_cut(contents.texts[text], cuts, _progress(send_line))
            # Sending fails if the client has gone: then nothing takes the place of the earlier run.
            send_line({"progress": {"doing": "comparing", "done": 1, "of": 1}})
            edited = EditedRun(text, tuple(cuts))
            send_line({"text": contents.add(capture, contents.titles[text], edited)})

        return stream(self.model_job, "running with something cut", work)

    async def _undo(self, request: Request) -> Response:
        """Remove an edited run and answer with the number of the text that it was of."""
        body = await _read_body(request, self.limits)
        number = check_number("text", body.get("text"), 0, MAX_NUMBER)
        return Json({"text": translate_errors(self.contents.remove, number).text})

    async def _generate(self, request: Request) -> Response:
        if self.generate is None:
            raise RefusedError(404, "this page has no model that can generate text")
        generate, body = self.generate, await _read_body(request, self.limits)
        text = check_text(body.get("text"), self.limits)
        most = self.limits.generated
        tokens = check_number("tokens", body.get("tokens", min(32, most)), 1, most)
        window = check_number("window", body.get("window", 64), 1, MAX_NUMBER)
        sinks = check_number("sinks", body.get("sinks", 4), 0, MAX_NUMBER)

        def work(send_line: SendLine) -> None:
            for line in generate(text, tokens=tokens, window=window, sinks=sinks):
                send_line(line)

        return stream(self.model_job, "generating", work)


class Json(JSONResponse):
    """A JSON response in ASCII: a token may be half of a character, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Query:
    """The parameters of a request, checked as they are read."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters

    def __contains__(self, name: str) -> bool:
        return name in self.parameters

    def __getitem__(self, name: str) -> str:
        if name not in self.parameters:
            raise RefusedError(400, f"{name}: expected this parameter in the request, got none")
        return self.parameters[name]

    def number(self, name: str) -> int:
        """Return a parameter as a whole number from 0."""
        return check_number(name, self[name], 0, MAX_NUMBER)

    @property
    def head(self) -> int | str:
        """The head's number, or "mean"."""
        return "mean" if self["head"] == "mean" else self.number("head")

    @property
    def quantity(self) -> Quantity:
        """What cells are made of: by default the weights of tokens."""
        words: dict[str, Any] = {name: self[name] for name in ("shade", "units") if name in self}
        for name in ("units_of", "position", "token"):
            if name in self:
                words[name] = self.number(name)
        return Quantity.parse(**words)


async def _read_body(request: Request, limits: Limits) -> dict[str, Any]:
    """Read a request's JSON object, without ever holding more than the limit."""
    too_large = RefusedError(413, f"expected a request of at most {limits.body:,} bytes, got a larger one")
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
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise RefusedError(400, 'expected a JSON object, such as {"text": "…"}')
    return parsed


def _progress(send_line: SendLine) -> ReportProgress:
    """Return a function that reports progress by sending lines."""

    def report(doing: str, done: int, of: int) -> None:
        send_line({"progress": {"doing": doing, "done": done, "of": of}})

    return report


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _floats(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().astype("<f4", copy=False).tobytes()


async def _answer_refused(request: Request, refusal: Exception) -> Response:
    return Json({"error": str(refusal)}, getattr(refusal, "status", 500))


async def _answer_not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    messages = {404: "there is nothing at this address", 405: "this address does not accept this method"}
    return Json({"error": messages.get(status, str(error))}, status)


async def _answer_failed(request: Request, error: Exception) -> Response:
    text = f"a request failed: {request.url.path}\n{''.join(traceback.format_exception(error))}"
    logging.getLogger(__name__).error("%s", escape(text))
    return Json({"error": f"internal error: {type(error).__name__}: {error}"}, 500)
