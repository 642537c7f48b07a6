"""The page as files and as one file: which static files there are, and how they become a single HTML.

The saved page asks nobody for anything: style, script and data stand in it, and its Content-Security-Policy
allows nothing else. This file knows HTML; `pack` knows the data.
"""

from __future__ import annotations

import base64
import hashlib
import html
import posixpath
import re
from collections.abc import Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from regard.atomic import atomic_write
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.saved.pack import pack

FOLDER = Path(__file__).parent.parent / "web"
STYLES = ("style.css", "views.css")
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[a-z_./]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
# What is left once those are taken out: statements of another form, and imports inside of functions. A line
# that begins with `*` is a comment.
FOREIGN = re.compile(r"^(?:import|export)\b.*|^(?!\s*(?:\*|//)).*\bimport\s*[(.].*", re.MULTILINE)


def write(
    seen: Capture | Sequence[Capture] | Contents,
    path: str | PathLike[str],
    *,
    values: bool | None = None,
    **options: Any,
) -> Path:
    """Write captures as one HTML file that opens anywhere, atomically. Options are those of `Contents`.

    `values`: True takes v along whatever the size, False leaves it out, None if the file stays small.
    """
    contents = seen if isinstance(seen, Contents) else Contents(seen, **options)
    path = Path(path)
    packed = pack(contents, values=values)
    before, after = _shell(contents.meta["model"])
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(before)
        for name, text in packed.blocks.items():
            file.write(f'<script type="application/octet-stream" id="{html.escape(name)}">{text}</script>\n')
        file.write(after)
    return path


def _shell(model: str) -> tuple[str, str]:
    """The HTML before and after the data."""
    style, script = "".join((FOLDER / name).read_text("utf-8") for name in STYLES), joined("main")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = (FOLDER / "index.html").read_text("utf-8")
    printable = model.encode("utf-8", "replace").decode("utf-8")
    page = _swap(page, "<title>Regard</title>", f"<title>{html.escape(printable)} · Regard</title>")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = _swap(page, '<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    links = "\n".join(f'<link rel="stylesheet" href="web/{name}">' for name in STYLES)
    page = _swap(page, links, f"<style>{style}</style>")
    page = _swap(page, '<script type="module" src="web/main.js"></script>\n', "")
    before, end, after = page.partition("</body>")
    # The script stands last, so that all data is there when it runs.
    return before, f"<script>{script}</script>\n{end}{after}"


def _swap(page: str, old: str, new: str) -> str:
    if page.count(old) != 1:
        raise RuntimeError(f"index.html: expected {old!r} once, found it {page.count(old)} times")
    return page.replace(old, new)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def joined(entry: str) -> str:
    """The modules that `entry` needs as one script, each in a function of its own.

    Modules go by their paths without `.js`: "common/dom". It understands the one way in which ours import
    (`import { a, b } from "../common/c.js";`) and export (before a function, a class or a constant), and
    refuses anything else.
    """
    order: list[str] = []
    _visit(entry, order, [])
    body = "\n".join(_wrapped(name) for name in order)
    if "</script" in body.lower() or "<!--" in body:
        raise RuntimeError("a module holds </script or <!--, which would end an inline script")
    return f'"use strict";\n{body}\n'


def _visit(name: str, order: list[str], path: list[str]) -> None:
    if name in path:
        raise RuntimeError(f"modules import each other in a circle: {' → '.join([*path, name])}")
    if name in order:
        return
    for _, other in IMPORT.findall(_module(name)):
        _visit(_resolved(other, name), order, [*path, name])
    order.append(name)


def _resolved(path: str, name: str) -> str:
    """The module that `path` names in an import of the module `name`."""
    other = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if other.startswith("../"):
        raise RuntimeError(f"{name}.js: cannot join {path}.js, which is not one of the page's modules")
    return other


def _wrapped(name: str) -> str:
    text = IMPORT.sub(
        lambda found: f"const {{{_renamed(found[1])}}} = {_variable(_resolved(found[2], name))};\n",
        _module(name),
    )
    names = EXPORT.findall(text)
    text = EXPORT.sub(lambda found: found[0].removeprefix("export "), text)
    if foreign := FOREIGN.search(text):
        raise RuntimeError(f"{name}.js: cannot join {foreign[0]!r}: write it as the other modules do")
    return f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _variable(name: str) -> str:
    """The variable that holds what a module exports; $ is in no module's name."""
    return "module_" + name.replace("/", "$")


def _renamed(names: str) -> str:
    """`a as b` of an import is `a: b` in a pattern."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _module(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text("utf-8")
