"""Resolves the navigation tree once for all pages of a folder that the tree does not list.

On such a page no entry is the current one, and links are relative to the folder, so that the trees are equal.
Most pages are of this kind, mistakes and source files, and Sphinx would resolve the tree for each of them.
"""

from __future__ import annotations

import posixpath
from typing import Any

BEFORE_THE_THEME = 100  # the theme's handler, which asks for the tree, has Sphinx's default of 500


def is_shared(app: Any, page: str) -> bool:
    """Whether the tree does not list a page."""
    return not any(page in listed for listed in app.env.toctree_includes.values())


def setup(app: Any) -> dict[str, bool]:
    trees: dict[Any, str] = {}

    def share_tree(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        resolve = context["toctree"]

        def shared(**options: Any) -> str:
            key = posixpath.dirname(page), *sorted(options.items())
            if key not in trees:
                trees[key] = resolve(**options)
            return trees[key]

        if is_shared(app, page):
            context["toctree"] = shared

    app.connect("html-page-context", share_tree, priority=BEFORE_THE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
