"""The page over HTTP: a small server that computes what the page asks for, when it asks.

The event loop only passes things on; weights are computed by a few threads, and what nobody waits for any
more is dropped. Reading a new text and generating are done by whoever starts the server, one at a time, and
come as lines of JSON while they run. This file knows HTTP and `Contents`; it does not know models.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
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

from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.server.limits import ExclusiveJob, Limits, RefusedError, text_of, whole
from regard.show.server.line_stream import Line, Say, Tell, kindly, left, stream

MOST = 1 << 31  # of any number that a page may ask with


class Read(Protocol):
    """Reads a text with a model."""

    def __call__(self, text: str, tell: Tell) -> Capture: ...


class Generate(Protocol):
    """Goes on with a text; every item is a line for the page (see `regard.gpt.cache_demo`)."""

    def __call__(self, text: str, *, tokens: int, window: int, sinks: int) -> Iterable[Line]: ...


@dataclass(frozen=True)
class Asset:
    """A file of the page, read when the server starts."""

    content: bytes
    kind: str


def page_files() -> dict[str, Asset]:
    """The files of the page by their paths: these and no others are ever served."""
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
    """What is served: the page's files, the captures, and what else whoever serves it can do."""

    contents: Contents
    read: Read | None = None
    generate: Generate | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.assets = page_files()
        self.turn = ExclusiveJob()
        self.workers = ThreadPoolExecutor(self.limits.workers, "regard-page")
        self.waiting = 0
        self.contents.can |= {"capture": self.read is not None, "generate": self.generate is not None}
        self.contents.__dict__.pop("meta", None)

    def application(self) -> Starlette:
        pages = [Route(path, self._asset) for path in self.assets]
        looks = {
            "meta": self._meta,
            "thumbs": self._thumbs,
            "sinks": self._sinks,
            "heads": self._heads,
            "tile": self._tile,
            "row": self._row,
            "column": self._column,
            "steps": self._steps,
            "eviction": self._eviction,
        }
        answers = [Route(f"/api/{name}", self._computed(make)) for name, make in looks.items()]
        orders = [
            Route("/api/capture", self._capture, methods=["POST"]),
            Route("/api/generate", self._generate, methods=["POST"]),
        ]
        application = Starlette(
            routes=[*pages, *answers, *orders],
            exception_handlers={
                RefusedError: _refused,
                HTTPException: _not_served,
                Exception: _broken,
            },
        )
        application.router.redirect_slashes = False
        return application

    async def _asset(self, request: Request) -> Response:
        asset = self.assets[request.scope["path"]]
        return Response(asset.content, media_type=asset.kind)

    def _computed(self, make: Callable[[Ask], Response]) -> Callable[[Request], Any]:
        """An endpoint whose answer is computed by a worker, unless the one who asked leaves first."""

        async def answer(request: Request) -> Response:
            if self.waiting >= self.limits.waiting:
                raise RefusedError(503, "the server has more to do than it can: try again in a moment")
            ask = Ask(request.query_params)
            self.waiting += 1
            done = asyncio.wrap_future(self.workers.submit(kindly, make, ask))
            leaving = asyncio.ensure_future(left(request.receive))
            try:
                either: set[asyncio.Future[Any]] = {done, leaving}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                return await done if done.done() else Response(status_code=499)  # the latter to nobody
            finally:
                self.waiting -= 1
                leaving.cancel()
                done.cancel()  # drops it if no worker has begun it, and what comes of it if one has

        return answer

    def _meta(self, ask: Ask) -> Response:
        return Json(self.contents.meta)

    def _thumbs(self, ask: Ask) -> Response:
        return _binary(self.contents.glance(ask.number("text"), ask["layer"]).thumbs.tobytes())

    def _sinks(self, ask: Ask) -> Response:
        return Json(self.contents.glance(ask.number("text"), ask["layer"]).sinks)

    def _heads(self, ask: Ask) -> Response:
        return Json(self.contents.heads(ask.number("text")))

    def _tile(self, ask: Ask) -> Response:
        text, head, z, i, j = (ask.number(name) for name in ("text", "head", "z", "i", "j"))
        without = ask.number("without") if "without" in ask else None
        mass, peak = self.contents.tile(text, ask["layer"], head, z, i, j, without)
        return _binary(_floats(mass) + _floats(peak))

    def _row(self, ask: Ask) -> Response:
        text, row = ask.number("text"), ask.number("row")
        return _binary(_floats(self.contents.row(text, ask["layer"], ask.head, row)))

    def _column(self, ask: Ask) -> Response:
        text, col = ask.number("text"), ask.number("col")
        return _binary(_floats(self.contents.column(text, ask["layer"], ask.head, col)))

    def _steps(self, ask: Ask) -> Response:
        text, head, row = (ask.number(name) for name in ("text", "head", "row"))
        return Json(self.contents.steps(text, ask["layer"], head, row))

    def _eviction(self, ask: Ask) -> Response:
        return Json(self.contents.eviction(ask.number("text"), ask["layer"]))

    async def _capture(self, request: Request) -> Response:
        if self.read is None:
            raise RefusedError(404, "no text can be read here: there is a capture and no model")
        read, asked = self.read, await _body(request, self.limits)
        text = text_of(asked.get("text"), self.limits)
        if len(self.contents.texts) >= self.limits.texts:
            raise RefusedError(409, f"there are {self.limits.texts} texts already, the most that are kept")

        def work(say: Say) -> None:
            def tell(doing: str, done: int, of: int) -> None:
                say({"progress": {"doing": doing, "done": done, "of": of}})

            seen = read(text, tell)
            tokens = max((layer.shape[3] for layer in seen.layers), default=0)
            if tokens > self.limits.tokens:
                raise RefusedError(
                    413, f"text: expected at most {self.limits.tokens:,} tokens, got {tokens:,}"
                )
            say({"text": self.contents.add(seen)})

        return stream(self.turn, "reading a text", work)

    async def _generate(self, request: Request) -> Response:
        if self.generate is None:
            raise RefusedError(404, "nothing can be generated here: there is no model that can")
        generate, asked = self.generate, await _body(request, self.limits)
        text = text_of(asked.get("text"), self.limits)
        most = self.limits.generated
        tokens = whole("tokens", asked.get("tokens", min(32, most)), 1, most)
        window = whole("window", asked.get("window", 64), 1, MOST)
        sinks = whole("sinks", asked.get("sinks", 4), 0, MOST)

        def work(say: Say) -> None:
            for line in generate(text, tokens=tokens, window=window, sinks=sinks):
                say(line)

        return stream(self.turn, "generating", work)


class Json(JSONResponse):
    """JSON in ASCII: a token may be half of a character, which no encoding of text can hold."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Ask:
    """What a request asks for, checked as it is read."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.query = query

    def __contains__(self, name: str) -> bool:
        return name in self.query

    def __getitem__(self, name: str) -> str:
        if name not in self.query:
            raise RefusedError(400, f"{name}: expected in the request, and it is not there")
        return self.query[name]

    def number(self, name: str) -> int:
        return whole(name, self[name], 0, MOST)

    @property
    def head(self) -> int | str:
        return "mean" if self["head"] == "mean" else self.number("head")


async def _body(request: Request, limits: Limits) -> dict[str, Any]:
    too_large = RefusedError(
        413, f"expected a request of at most {limits.body:,} bytes, and this one is larger"
    )
    if int(request.headers.get("content-length", "0")) > limits.body:  # h11 has made sure of a number
        raise too_large
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > limits.body:
                raise too_large
    except ClientDisconnect:
        raise RefusedError(499, "the request broke off") from None  # said to nobody
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise RefusedError(400, 'expected a JSON object, such as {"text": "…"}')
    return asked


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _floats(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().astype("<f4", copy=False).tobytes()


async def _refused(request: Request, refusal: Exception) -> Response:
    return Json({"error": str(refusal)}, getattr(refusal, "status", 500))


async def _not_served(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    said = {404: "there is nothing at this address", 405: "this address does not take such a request"}
    return Json({"error": said.get(status, str(error))}, status)


async def _broken(request: Request, error: Exception) -> Response:
    logging.getLogger(__name__).error("a request failed: %s", request.url.path, exc_info=error)
    return Json({"error": f"the server stumbled: {type(error).__name__}: {error}"}, 500)
