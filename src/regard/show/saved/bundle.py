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

from regard.gpt import GPT
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.saved.kept_heads import keep_telling_heads
from regard.show.saved.model_block import MOST_BYTES, check_model
from regard.show.saved.pack import pack
from regard.show.saved.packed_layer import deflate
from regard.show.saved.rounded_model import RoundedModel, measure_change, read_again, round_model
from regard.support.files import atomic_write

FOLDER = Path(__file__).parent.parent / "web"
LINK = re.compile(r'(?:<link rel="stylesheet" href="web/[a-z_/]+\.css">\n)+')
SCRIPT = '<script type="module" src="web/whole_page.js"></script>\n'
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
    model: GPT | None = None,
    exact: bool = False,
    **options: Any,
) -> Path:
    """Write captures as one HTML file that opens anywhere, atomically, and return its path.

    Arguments:
        captures: one capture, several, or prepared `Contents`.
        path: the file to write; its folder must exist.
        values: whether to include the values v. None includes them if the file stays small.
        model: the model that was captured, to run in the page: its readers can then type texts, cut heads and
            generate, offline. ValueError if it is not a `GPT`, or if the page would have more than 20 MB.
        exact: whether to keep q, k and the model's weights as they are. By default they are rounded, so that
            the page can be sent: q and k so that weights change by at most 3 percentage points, a model to
            about 5.4 bits a weight. A rounded model reads the texts again, and the page says what changed. A
            page that would still have more than 40 MB keeps the heads that tell most, and names the others.
        options: arguments of `Contents`, if captures were given.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: there is no folder {str(path.parent)!r}: make it first")
    contents = captures if isinstance(captures, Contents) else Contents(captures, **options)
    inside: GPT | RoundedModel | None = model
    if model is not None and not exact:
        inside = round_model(check_model(model))
        contents, unrounded = read_again(contents, inside.model), contents
        inside = inside._replace(change=measure_change(unrounded, contents))
    elif model is None and not exact:
        contents = keep_telling_heads(contents)
    packed = pack(contents, values=values, model=inside, exact=exact)
    before, script, after = _shell(
        contents.meta["model"], "source/arithmetic/worker" if model is None else "model/worker"
    )
    if model is not None:
        _check_size([before, script, after, *packed.blocks.values(), *packed.later.values()])
    # newline: Windows would write \r\n, and the file would differ from system to system.
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(before)
        for blocks, end in ((packed.blocks, script), (packed.later, after)):
            for name, text in blocks.items():
                file.write(_data_block(name, text))
            file.write(end)
    return path


def _data_block(name: str, text: str) -> str:
    """Return an element that holds the text of a block, and that browsers do not run."""
    return f'<script type="application/octet-stream" id="{html.escape(name)}">{text}</script>\n'


@cache
def _deflated(script: str) -> str:
    return deflate(script.encode("utf-8"))


def _check_size(parts: Sequence[str]) -> None:
    """Raise ValueError if a page with a model is too large."""
    if (size := sum(map(len, parts))) > MOST_BYTES:
        raise ValueError(
            f"page: expected at most {MOST_BYTES / 1e6:.0f} MB with its model, got {size / 1e6:.1f} MB: read "
            "fewer or shorter texts, or write the page without its model"
        )


@cache
def notebook_page() -> str:
    """Return the page without data, for a notebook's frame: it asks for everything through a port."""
    before, script, after = _shell("Notebook")
    return before + script + after


def _shell(model: str, worker_entry: str | None = None) -> tuple[str, str, str]:
    """Return the HTML before the data, the script after it, and the end of the page.

    `worker_entry` is the module of the page's worker, if it needs one.
    """
    page, links = _read_page()
    style, script, packed = bundle_styles(), bundle_modules("whole_page"), ""
    allowed = ""
    if worker_entry is not None:
        inflated = bundle_modules("whole_page", "inflated_script")
        packed = _data_block("regard-worker", _deflated(bundle_modules(worker_entry)))
        packed += _data_block("regard-script", _deflated(inflated))
        script, allowed = bundle_modules("inflated_script"), f" '{_hash(inflated)}'"
    allowed = f"'{_hash(script)}'{allowed}"
    if worker_entry == "model/worker":
        allowed += " 'wasm-unsafe-eval'"  # lets WebAssembly multiply matrices; eval stays forbidden
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src '{_hash(style)}'; "
        "worker-src blob:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    # A model's name may come from a file's, which on Linux may hold lone surrogates.
    printable = model.encode("utf-8", "replace").decode("utf-8")
    page = _swap(page, "<title>Regard</title>", f"<title>{html.escape(printable)} · Regard</title>")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = _swap(page, '<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    page = _swap(page, links, f"<style>{style}</style>\n")
    page = _swap(page, SCRIPT, "")
    before, end, after = page.partition("</body>")
    # The script comes after the data, so that all of it has been parsed when it runs; a model comes later.
    return before + packed, f"<script>{script}</script>\n", f"{end}{after}"


def link_bundles() -> str:
    """Return the page with a link to one style sheet and to bundled scripts, as it is served."""
    page, links = _read_page()
    page = _swap(page, links, '<link rel="stylesheet" href="web/style.css">\n')
    scripts = "".join(f'<script defer src="web/{name}.js"></script>\n' for name in ("early", "main"))
    return _swap(page, SCRIPT, scripts)


def bundle_styles() -> str:
    """Return all style sheets of the page, in the order of their links, as one."""
    names = re.findall(r'href="web/([^"]+)"', _read_page()[1])
    return "".join((FOLDER / name).read_text("utf-8") for name in names)


def _read_page() -> tuple[str, str]:
    """Return index.html, and the part of it that links its style sheets."""
    page = (FOLDER / "index.html").read_text("utf-8")
    links = LINK.search(page)
    if links is None:
        raise RuntimeError("index.html: expected links to the page's style sheets, got none")
    return page, links[0]


def _swap(page: str, old: str, new: str) -> str:
    """Replace a text that must occur exactly once."""
    if page.count(old) != 1:
        raise RuntimeError(f"index.html: expected {old!r} once, got it {page.count(old)} times")
    return page.replace(old, new)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def bundle_modules(entry: str, after: str | None = None) -> str:
    """Bundle the module `entry` and all it imports into one script, each module in a function of its own.

    Modules that the script of the entry `after` has are left out: it runs before, in the same page.

    A module is named by its path without `.js`, such as "parts/dom". Only one form of import
    (`import { a, b } from "../parts/c.js";`) and of export (before a function, a class or a constant) is
    supported; RuntimeError names any other.
    """
    order: list[str] = []
    if after is not None:
        _visit(after, order, [])
    known = len(order)
    _visit(entry, order, [])
    body = "\n".join(_wrap_module(name) for name in order[known:])
    # Browsers end, or misread, an inline script at these texts, also inside of a string.
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
    """Return a module as a constant: a function that is called at once and returns the module's exports.

    Comments are left out: they are a quarter of the code.
    """
    text = IMPORT.sub(
        lambda match: f"const {{{_rename(match[1])}}} = {_variable(_resolve(match[2], name))};\n",
        _module(name),
    )
    names = EXPORT.findall(text)
    text = EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
    if foreign := FOREIGN.search(text):
        raise RuntimeError(f"{name}.js: cannot bundle {foreign[0]!r}: write it as the other modules do")
    text = _without_comments(text)
    return f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _without_comments(text: str) -> str:
    """Remove empty lines and comments, unless a string or a template literal holds them."""
    kept, in_comment, in_template = [], False, False
    for line in text.splitlines():
        start = line.lstrip()
        if in_comment:
            in_comment = "*/" not in line
        elif not in_template and (not start or start.startswith("//")):
            continue
        elif not in_template and start.startswith("/**") and ("*/" not in line or line.endswith("*/")):
            in_comment = "*/" not in line
        else:
            code, mark, _ = line.rpartition(" // ")
            is_code = bool(mark) and not in_template and all(code.count(quote) % 2 == 0 for quote in "\"'`")
            line = code.rstrip() if is_code else line
            kept.append(line)
            in_template ^= line.count("`") % 2 == 1
    return "\n".join(kept)


def _variable(name: str) -> str:
    """Return the variable that holds a module's exports; no module's name contains $."""
    return "module_" + name.replace("/", "$")


def _rename(names: str) -> str:
    """Rewrite `a as b` of an import as `a: b`, as a destructuring pattern has it."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _module(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text("utf-8")
