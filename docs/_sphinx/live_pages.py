"""The directive `live-page`: the saved page of the included model in a frame, in a given state.

    ```{live-page} view=map&layer=5&head=3
    :alt: what the reader sees
    ```

Another saved page beside it is named before a "#": `digits.html#view=image`.

In a document that GitHub shows, write `<!-- live: view=map -->` before a picture instead: scripts/docs.py
turns the two into this directive, so that GitHub shows the picture and the site the page. The option
`:with-model:`, or `<!-- live with model: view=map -->`, shows the page that holds the model as well.
"""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

PAGES, PAGE, PAGE_WITH_MODEL = "_static/pages/", "model.html", "live.html"


class LivePage(SphinxDirective):
    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required, "with-model": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        up = "../" * self.env.docname.count("/")
        page, _, state = self.arguments[0].rpartition("#")
        page = page or (PAGE_WITH_MODEL if "with-model" in self.options else PAGE)
        address = html.escape(f"{up}{PAGES}{page}#{state}")
        title = html.escape(self.options["alt"])
        frame = (
            f'<figure class="live-page"><iframe src="{address}" title="{title}" loading="lazy"></iframe>'
            f'<figcaption>{title}. <a href="{address}">Open this page alone</a></figcaption></figure>'
        )
        return [nodes.raw("", frame, format="html")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("live-page", LivePage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
