"""The documentation site as the tests see it: how it is built once, and what its pages link to and load."""

import fcntl
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts import docs

ROOT = Path(__file__).parent.parent
LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
"""The attributes by which an element makes a browser load something."""
IN_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def build_once(folder):
    """Build the site into a folder that several workers share; the first builds, the others wait."""
    out = folder / "site" / "docs"
    out.parent.mkdir(exist_ok=True)
    with (folder / "site" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "index.html").exists():
            command = [sys.executable, "-m", "scripts.docs", "--out", str(out)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return out


def link_documents(folder):
    """Let Sphinx read and link all that the site shows, and write no page of it, which takes the longest.

    To be run in a process of its own, since Sphinx changes more of a process than a test may.
    """
    from sphinx.cmd.build import build_main

    sys.path.insert(0, str(docs.ROOT / "docs" / "_sphinx"))  # as Sphinx's configuration does
    import code_blocks

    code_blocks.highlight = lambda text, *_: text  # lines of a source file have anchors without colours, too
    docs.gather(folder / "source")
    options = ["--quiet", "--fail-on-warning", "--nitpicky", "-b", "dummy", "-w", str(folder / "warnings")]
    options += ["-D", "smartquotes=0"]  # a tenth of the time, and no link
    sys.exit(build_main([*options, str(folder / "source"), str(folder / "out")]))


class Page(HTMLParser):
    """What an HTML file has: anchors, links, what it loads, formulas, and inline code with the link on it."""

    def __init__(self, path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.code: list[list[str | None]] = []
        self.formulas = 0
        self.prose = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.formulas += tag == "math"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [values[name] for name in LOADED.get(tag, ()) if name in values]
        self.loaded += in_css(values.get("style", ""))
        if tag == "code":
            self.code.append(["", next((href for tag, href in self._open[::-1] if tag == "a"), None)])
        if tag not in ("br", "hr", "img", "input", "link", "meta", "path", "source", "wbr"):
            self._open.append((tag, values.get("href")))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tags = [tag for tag, _ in self._open]
        if "style" in tags:
            self.loaded += in_css(data)
        elif "code" in tags:
            self.code[-1][0] = f"{self.code[-1][0]}{data}"
        elif not {"pre", "script", "math"} & set(tags):
            self.prose += data


def in_css(text):
    """Return what a style sheet loads."""
    return [url or imported for url, imported in IN_CSS.findall(text)]


@cache
def read(path):
    return Page(path)


def pages(folder):
    """Return every page of the site; the saved pages of Regard have tests of their own."""
    return sorted(path for path in folder.rglob("*.html") if "_static" not in path.parts)


def broken_links(folder):
    """Yield each link between the files of a site that leads to no file, or to no anchor of it."""
    files = set(folder.rglob("*"))
    for path in pages(folder):
        for address in dict.fromkeys(read(path).links + read(path).loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = resolve(path, address)
            if target not in files or not _has_anchor(target, unquote(parts.fragment)):
                yield f"{path.relative_to(folder)}: {address}"


def resolve(path, address):
    """Return the file that an address on a page leads to."""
    name = unquote(urlsplit(address).path)
    return Path(os.path.normpath(path.parent / name)) if name else path


def targets(path):
    """Return the files of the site that the links of a page lead to."""
    return [resolve(path, link) for link in read(path).links if not urlsplit(link).scheme]


def _has_anchor(path, anchor):
    """Whether a file has an anchor; what follows # in the address of a saved page is its state."""
    if not anchor or path.suffix != ".html" or "_static" in path.parts:
        return True
    return anchor in read(path).anchors


def external_resources(folder):
    """Yield each address outside of the site that a page or a style sheet of it loads."""
    loaded = [(path, address) for path in pages(folder) for address in read(path).loaded]
    for path in [*folder.rglob("*.css"), *folder.rglob("*.svg")]:
        loaded += [(path, address) for address in in_css(path.read_text(encoding="utf-8"))]
    for path, address in loaded:
        parts = urlsplit(address)
        if parts.netloc or parts.scheme not in ("", "data"):
            yield f"{path.relative_to(folder)}: {address}"
