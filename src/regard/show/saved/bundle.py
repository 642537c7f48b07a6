"""The saved page: style, script and data bundled into a single HTML file.

The file requests nothing from anywhere: everything is inside it, and its Content-Security-Policy allows
nothing else. This file knows HTML and how the page's modules import each other; `pack` knows the data.
"""

from __future__ import annotations

import base64
import hashlib
import html
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

FOLDER = Path(__file__).parent.parent / "page"
STYLES = ("style.css", "views.css")
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)


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
        raise FileNotFoundError(f"save: there is no folder {str(path.parent)!r}: make it first")
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
    links = "\n".join(f'<link rel="stylesheet" href="page/{name}">' for name in STYLES)
    page = _swap(page, links, f"<style>{style}</style>")
    page = _swap(page, '<script type="module" src="page/main.js"></script>\n', "")
    before, end, after = page.partition("</body>")
    # The script comes last, so that all data has been parsed when it runs.
    return before, f"<script>{script}</script>\n{end}{after}"


def _swap(page: str, old: str, new: str) -> str:
    if page.count(old) != 1:
        raise RuntimeError(f"index.html: expected {old!r} once, got it {page.count(old)} times")
    return page.replace(old, new)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def joined(entry: str) -> str:
    """The modules that `entry` needs as one script, each in a function of its own.

    It understands the one way in which ours import (`import { a, b } from "./c.js";`) and export (before a
    function, a class or a constant), and says so of anything else.
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
        _visit(other, order, [*path, name])
    order.append(name)


def _wrapped(name: str) -> str:
    text = IMPORT.sub(lambda found: f"const {{{_renamed(found[1])}}} = module_{found[2]};\n", _module(name))
    names = EXPORT.findall(text)
    text = EXPORT.sub(lambda found: found[0].removeprefix("export "), text)
    if left := re.search(r"^(import|export)\b.*", text, re.MULTILINE):
        raise RuntimeError(f"{name}.js: cannot join {left[0]!r}: write it as the other modules do")
    return f"const module_{name} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _renamed(names: str) -> str:
    """`a as b` of an import is `a: b` in a pattern."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _module(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text("utf-8")
