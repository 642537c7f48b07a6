"""The directive `live-page`: the saved page of the included model in a frame, in a given state.

    ```{live-page} view=map&layer=5&head=3
    :alt: what the reader sees
    ```

In a document that GitHub shows, write `<!-- live: view=map -->` before a picture instead: scripts/docs.py
turns the two into this directive, so that GitHub shows the picture and the site the page.
"""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

PAGE = "_static/pages/model.html"


class LivePage(SphinxDirective):
    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        up = "../" * self.env.docname.count("/")
        address = html.escape(f"{up}{PAGE}#{self.arguments[0]}")
        title = html.escape(self.options["alt"])
        frame = (
            f'<figure class="live-page"><iframe src="{address}" title="{title}" loading="lazy"></iframe>'
            f'<figcaption>{title}. <a href="{address}">Open this page alone</a></figcaption></figure>'
        )
        return [nodes.raw("", frame, format="html")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("live-page", LivePage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
