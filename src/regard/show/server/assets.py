"""The page's own files as they are served: one page, one style sheet and two scripts, each also
compressed: a short one that asks for data, and the page.

The modules that the script is made of are bundled when the first server starts. This file knows the files;
`app` knows HTTP.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from functools import cache

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.show.saved.bundle import bundle_modules, bundle_styles, link_bundles

EARLY = "source/early_meta"  # asks for data while the rest of the code is on its way
LEAST_COMPRESSED = 1 << 10  # bytes


@dataclass(frozen=True)
class Asset:
    """A static file of the page."""

    content: bytes
    kind: str  # its media type
    compressed: bytes = field(init=False)

    def __post_init__(self) -> None:
        # mtime=0, so that the same file gives the same bytes.
        object.__setattr__(self, "compressed", gzip.compress(self.content, 9, mtime=0))


@cache
def page_files() -> dict[str, Asset]:
    """Return the page's static files by their paths: these and no others are ever served."""
    files = {
        "/": (link_bundles(), "text/html"),
        "/web/early.js": (bundle_modules(EARLY), "text/javascript"),
        "/web/main.js": (bundle_modules("served_page", after=EARLY), "text/javascript"),
        "/web/style.css": (bundle_styles(), "text/css"),
    }
    return {path: Asset(text.encode("utf-8"), kind) for path, (text, kind) in files.items()}


def asset_routes() -> list[Route]:
    """Return a route for each of the page's files."""
    return [Route(path, _answer_asset) for path in page_files()]


async def _answer_asset(request: Request) -> Response:
    asset = page_files()[request.scope["path"]]
    if accepts_gzip(request.headers):
        return Response(asset.compressed, media_type=asset.kind, headers=COMPRESSED)
    return Response(asset.content, media_type=asset.kind, headers={"vary": "accept-encoding"})


COMPRESSED = {"content-encoding": "gzip", "vary": "accept-encoding"}


def accepts_gzip(headers: Headers) -> bool:
    """Return whether a client says that it reads gzip."""
    encodings = (part.strip().partition(";") for part in headers.get("accept-encoding", "").split(","))
    # Without a q of 0, by which a client says that it reads anything but gzip.
    return any(name.strip().lower() == "gzip" and q.replace(" ", "") not in NEVER for name, _, q in encodings)


NEVER = {"q=0", "q=0.0", "q=0.00", "q=0.000"}


def compress(response: Response, headers: Headers) -> Response:
    """Return a response with its body compressed, if it is long and the client reads gzip."""
    response.headers["vary"] = "accept-encoding"
    if len(response.body) < LEAST_COMPRESSED or not accepts_gzip(headers):
        return response
    # 6 and not 9: this is computed for each answer, the files above once.
    body = gzip.compress(bytes(response.body), 6, mtime=0)
    response.body = body
    response.headers["content-length"] = str(len(body))
    response.headers["content-encoding"] = "gzip"
    return response
