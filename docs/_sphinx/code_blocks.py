"""Blocks of code: sessions without the empty line that doctest needs, and whole files of the repository.

The directive `source-file` shows a file with numbered lines that can be linked to, `#L12` as on GitHub.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.util.docutils import SphinxDirective

import regard

ROOT = Path(regard.__file__).parents[2]


class SourceFile(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = (ROOT / self.arguments[0]).read_text(encoding="utf-8")
        shown = highlight(text, PythonLexer(), HtmlFormatter(linenos="inline", linespans="L"))
        shown = shown.replace('<span id="L-', '<span id="L')
        lines = range(1, len(text.splitlines()) + 1)
        self.state.document["line_anchors"] = {f"L{line}": (line, f"L{line}", "") for line in lines}
        return [nodes.raw("", f'<div class="highlight-python source-file">{shown}</div>', format="html")]


def trim_sessions(app: Any, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block.children = [nodes.Text(block.rawsource)]


def add_anchors(app: Any, doctree: nodes.document) -> None:
    """Tell MyST of the anchors of the lines: it knows those of headings only."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    slugs.update(doctree.attributes.pop("line_anchors", {}))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("source-file", SourceFile)
    app.connect("doctree-read", trim_sessions)
    app.connect("doctree-read", add_anchors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
