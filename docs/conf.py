"""Sphinx's configuration. `make docs` gathers the documents and builds them: see scripts/docs.py."""

import functools
import os
import sys

from sphinx.search.en import SearchEnglish

from regard.version import __version__

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "_sphinx"))

project = "Regard"
author = "The Regard authors"
version = release = __version__
extensions = ["myst_parser", "mathml", "name_links", "live_pages", "code_blocks", "shared_navigation"]
exclude_patterns = ["_sphinx", "learn/*/*.md"]

myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
myst_links_external_new_tab = False

# For the search, a word is stemmed once, not on every page anew.
SearchEnglish.stem = functools.cache(SearchEnglish.stem)  # type: ignore[method-assign]

html_theme = "furo"
html_title = "Regard"
html_math_renderer = "mathml"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_extra_path = ["llms.txt"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
# A lesson comes first for its subject.
html_search_scorer = os.path.join(os.path.dirname(__file__), "_sphinx", "search_scorer.js")
html_use_index = False
html_copy_source = False
html_show_search_summary = False  # it would fetch the pages, which a browser refuses from disk
html_show_sourcelink = False
html_show_copyright = False
# The colours of the page that `regard inspect` opens.
LIGHT = {
    "color-brand-primary": "#b8430f",
    "color-brand-content": "#b8430f",
    "color-foreground-primary": "#1d2026",
    "color-foreground-secondary": "#5b606b",
    "color-foreground-muted": "#696e78",
    "color-foreground-border": "#8c909a",
    "color-background-primary": "#faf9f6",
    "color-background-secondary": "#f1efe9",
    "color-background-hover": "#e9e6de",
    "color-background-hover--transparent": "#e9e6de00",
    "color-background-border": "#e2dfd7",
    "color-code-background": "#f1efe9",
    "color-inline-code-background": "#f1efe9",
    "color-highlight-on-target": "#f6e2c8",
    "color-sidebar-link-text": "#1d2026",
    "color-sidebar-link-text--top-level": "#1d2026",
}
DARK = {
    "color-brand-primary": "#ff9a5c",
    "color-brand-content": "#ff9a5c",
    "color-foreground-primary": "#e9e7e1",
    "color-foreground-secondary": "#a3a7b0",
    "color-foreground-muted": "#8f949e",
    "color-foreground-border": "#767b86",
    "color-background-primary": "#14161a",
    "color-background-secondary": "#0f1114",
    "color-background-hover": "#1f2329",
    "color-background-hover--transparent": "#1f232900",
    "color-background-border": "#2b2f37",
    "color-code-background": "#1b1e24",
    "color-inline-code-background": "#1b1e24",
    "color-highlight-on-target": "#4a3420",
    "color-sidebar-link-text": "#e9e7e1",
    "color-sidebar-link-text--top-level": "#e9e7e1",
}
html_theme_options = {"light_css_variables": LIGHT, "dark_css_variables": DARK}
