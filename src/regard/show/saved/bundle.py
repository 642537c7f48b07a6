"""The saved page: style, script and data bundled into a single HTML file.

The file requests nothing from anywhere: everything is inside it, and its Content-Security-Policy allows
nothing else. The script of the page's worker stands in it as text; the page starts it from a blob, which
inherits that policy. This file knows HTML and how the page's modules import each other; `pack` knows the
data.
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
STYLES = ("style.css", "views.css", "runs.css")
IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[a-z_./]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
# What remains once those are removed: statements of another form, and imports inside functions. A line that
# begins with `*` is a comment.
FOREIGN = re.compile(r"^(?:import|export)\b.*|^(?!\s*(?:\*|//)).*\bimport\s*[(.].*", re.MULTILINE)


def write(
    captures: Capture | Sequence[Capture] | Contents,
    path: str | PathLike[str],
    *,
    values: bool | None = None,
    **options: Any,
) -> Path:
    """Write captures as one HTML file that opens anywhere, atomically, and return its path.

    Arguments:
        captures: one capture, several, or prepared `Contents`.
        path: the file to write; its folder must exist.
        values: whether to include the values v. None includes them if the file stays small.
        options: arguments of `Contents`, if captures were given.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: there is no folder {str(path.parent)!r}: make it first")
    contents = captures if isinstance(captures, Contents) else Contents(captures, **options)
    packed = pack(contents, values=values)
    before, after = _shell(contents.meta["model"])
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(before)
        for name, text in packed.blocks.items():
            file.write(f'<script type="application/octet-stream" id="{html.escape(name)}">{text}</script>\n')
        file.write(after)
    return path


def _shell(model: str) -> tuple[str, str]:
    """Return the HTML before and after the data."""
    style, script = "".join((FOLDER / name).read_text("utf-8") for name in STYLES), bundle_modules("main")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "worker-src blob:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    worker = f'<script type="text/plain" id="regard-worker">{bundle_modules("source/worker")}</script>\n'
    page = (FOLDER / "index.html").read_text("utf-8")
    printable = model.encode("utf-8", "replace").decode("utf-8")
    page = _swap(page, "<title>Regard</title>", f"<title>{html.escape(printable)} · Regard</title>")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = _swap(page, '<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    links = "\n".join(f'<link rel="stylesheet" href="web/{name}">' for name in STYLES)
    page = _swap(page, links, f"<style>{style}</style>")
    page = _swap(page, '<script type="module" src="web/main.js"></script>\n', "")
    before, end, after = page.partition("</body>")
    # The script comes last, so that all data has been parsed when it runs.
    return before + worker, f"<script>{script}</script>\n{end}{after}"


def _swap(page: str, old: str, new: str) -> str:
    """Replace a text that must occur exactly once."""
    if page.count(old) != 1:
        raise RuntimeError(f"index.html: expected {old!r} once, got it {page.count(old)} times")
    return page.replace(old, new)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def bundle_modules(entry: str) -> str:
    """Bundle the module `entry` and all it imports into one script, each module in a function of its own.

    A module is named by its path without `.js`, such as "common/dom". Only one form of import
    (`import { a, b } from "../common/c.js";`) and of export (before a function, a class or a constant) is
    supported; RuntimeError names any other.
    """
    order: list[str] = []
    _visit(entry, order, [])
    body = "\n".join(_wrap_module(name) for name in order)
    if "</script" in body.lower() or "<!--" in body:
        raise RuntimeError("a module contains </script or <!--, which would end an inline script")
    return f'"use strict";\n{body}\n'


def _visit(name: str, order: list[str], path: list[str]) -> None:
    """Append a module to `order`, after everything that it imports; `path` leads to it from the entry."""
    if name in path:
        raise RuntimeError(f"modules import each other in a circle: {' → '.join([*path, name])}")
    if name in order:
        return
    for _, other in IMPORT.findall(_module(name)):
        _visit(_resolve(other, name), order, [*path, name])
    order.append(name)


def _resolve(path: str, name: str) -> str:
    """Return the name of the module that `path` refers to in an import of the module `name`."""
    other = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if other.startswith("../"):
        raise RuntimeError(f"{name}.js: cannot bundle {path}.js, which is not one of the page's modules")
    return other


def _wrap_module(name: str) -> str:
    """Return a module as a constant: a function that is called at once and returns the module's exports."""
    text = IMPORT.sub(
        lambda match: f"const {{{_rename(match[1])}}} = {_variable(_resolve(match[2], name))};\n",
        _module(name),
    )
    names = EXPORT.findall(text)
    text = EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
    if foreign := FOREIGN.search(text):
        raise RuntimeError(f"{name}.js: cannot bundle {foreign[0]!r}: write it as the other modules do")
    return f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _variable(name: str) -> str:
    """Return the variable that holds a module's exports; no module's name contains $."""
    return "module_" + name.replace("/", "$")


def _rename(names: str) -> str:
    """Rewrite `a as b` of an import as `a: b`, as a destructuring pattern has it."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _module(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text("utf-8")
