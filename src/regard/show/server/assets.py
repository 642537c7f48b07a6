"""The page's own files as they are served: one page, one style sheet and two scripts.

The first script is short and asks for data while the other, the page, is on its way.

The modules that the script is made of are bundled when the first server starts. This file knows the files;
`app` knows HTTP.
"""

from __future__ import annotations

from functools import cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.show.saved.bundle import bundle_modules, bundle_styles, link_bundles

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
