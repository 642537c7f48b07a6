"""The pages of the lessons: HTML files that need no network, made from the lessons' Markdown.

Formulas become MathML, code is coloured, pictures are in the file, and names of mistakes say what they are
when pointed at. What the learner has made is shown on top once the lesson is done.
"""

from __future__ import annotations

import base64
import html
import importlib.resources
import re
from pathlib import Path
from typing import Any

from regard.learn.course import LESSONS, next_lesson
from regard.learn.lesson import Lesson
from regard.learn.wrong_ways import find_mistake
from regard.support.files import atomic_write
from regard.support.imports import extra

MARK = "<!-- a lesson of Regard: written by `regard learn`, which may write it again -->"
PAGES = "regard-lessons"
MOVABLE = re.compile(r"<!-- movable: (\w+\.js) -->")
LESSON_LINK = re.compile(r"^\.\./(\d\d)_\w+/lesson\.md$")


def write_pages(folder: Path) -> None:
    """Write the page of every lesson into the folder `regard-lessons` of a learner's folder."""
    for lesson in LESSONS:
        write_page(lesson, folder)


def write_page(lesson: Lesson, folder: Path) -> None:
    """Write the page of one lesson there; a file that we did not write stays as it is, with an error."""
    path = page_path(lesson, folder)
    path.parent.mkdir(exist_ok=True)
    # errors="replace": a file of this name may be anything.
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace")[:400]:
        raise ValueError(
            f"{path} is not a lesson's page: move it away, or learn in another folder (--folder)"
        )
    with atomic_write(path) as file:
        file.write_text(lesson_page(lesson, picture_path(lesson, folder).exists()), encoding="utf-8")


def show_picture(lesson: Lesson, folder: Path) -> None:
    """Show the picture of the learner's own weights on the page of a lesson."""
    path = page_path(lesson, folder)
    page = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if MARK not in page[:400]:
        write_page(lesson, folder)
    # Added to the page that is there: to make it anew takes seconds, mostly to import what it is made with.
    elif _yours(lesson) not in page:
        with atomic_write(path) as file:
            file.write_text(page.replace("</h1>", f"</h1>{_yours(lesson)}", 1), encoding="utf-8")


def page_path(lesson: Lesson, folder: Path) -> Path:
    """Where the page of a lesson is, for a learner's folder."""
    return folder / PAGES / f"lesson{lesson.number}.html"


def picture_path(lesson: Lesson, folder: Path) -> Path:
    """Where the picture of the learner's own weights is, once the lesson is done."""
    return folder / PAGES / f"lesson{lesson.number}-yours.svg"


def lesson_page(lesson: Lesson, with_picture: bool = False) -> str:
    """Return the page of a lesson as HTML, with or without the picture of the learner's own weights."""
    style = importlib.resources.files("regard.learn").joinpath("page.css").read_text(encoding="utf-8")
    title = html.escape(f"{lesson.number} {lesson.title}")
    yours = _yours(lesson) if with_picture else ""
    return (
        f"<!doctype html>\n{MARK}\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<nav>{_lesson_list(lesson)}</nav>\n"
        f"<main>\n{_render(lesson).replace('</h1>', f'</h1>{yours}', 1)}\n{_how_to_go_on(lesson)}</main>\n"
        "</body>\n</html>\n"
    )


def _yours(lesson: Lesson) -> str:
    """The picture of the learner's own weights."""
    return (
        f"<figure><img src='lesson{lesson.number}-yours.svg' alt='the weights of your own code'>"
        "<figcaption>Done: these weights are computed by your code.</figcaption></figure>\n"
    )


def _lesson_list(current: Lesson) -> str:
    items = [
        f"<li{' class=current' if lesson is current else ''}>"
        f"<a href='lesson{lesson.number}.html'>{lesson.number} {html.escape(lesson.title)}</a></li>"
        for lesson in LESSONS
    ]
    return f"<ol>{''.join(items)}</ol>"


def _how_to_go_on(lesson: Lesson) -> str:
    if not lesson.has_code:
        following = next_lesson(lesson)
        argument = "hunt" if following is None else following.number
        through = f"Once you are through: <code>regard learn {lesson.number} --check</code>. "
        return (
            f"<p class='next'>{through if lesson.command else ''}"
            f"Go on: <code>regard learn {argument}</code></p>"
        )
    commands = (("--check", "judges it"), ("--watch", "whenever you save it"), ("--hint", "how to fix it"))
    lines = [f"regard learn {lesson.number} {option:<9} # {what}" for option, what in commands]
    code = html.escape("\n".join(lines))
    return (
        f"<h2>Your turn</h2><p>Your file is <code>{lesson.file}</code>: {lesson.goal}.</p><pre>{code}</pre>"
    )


def _render(lesson: Lesson) -> str:
    with extra("app", "the page of a lesson"):
        from markdown_it import MarkdownIt
        from mdit_py_plugins.anchors import anchors_plugin
        from mdit_py_plugins.dollarmath import dollarmath_plugin

    markdown = MarkdownIt("commonmark", {"html": True, "highlight": _highlight}).enable("table")
    markdown.use(dollarmath_plugin, renderer=_formula).use(anchors_plugin, max_level=3)
    folder = lesson.folder
    markdown.add_render_rule("image", lambda _, tokens, i, *rest: _image(folder, tokens[i]))
    markdown.add_render_rule("link_open", lambda _, tokens, i, *rest: _link(folder, tokens[i]))
    markdown.add_render_rule("code_inline", lambda _, tokens, i, *rest: _code(tokens[i].content))
    rendered: str = MOVABLE.sub(lambda found: movable(lesson, found[1]), markdown.render(lesson.text))
    # A wide table scrolls inside its own box on a narrow screen.
    return rendered.replace("<table>", "<div class='wide'><table>").replace("</table>", "</table></div>")


def movable(lesson: Lesson, name: str) -> str:
    """Return a drawing that the reader can move as HTML: the script of this name in the lesson's folder.

    A lesson has it where its text has the comment `<!-- movable: NAME -->`; GitHub and notebooks, which run
    no scripts, show nothing there.
    """
    script = (lesson.folder / name).read_text(encoding="utf-8")
    return f"<div class='movable'></div>\n<script>\n{script}</script>"


def _formula(latex: str, options: dict[str, Any]) -> str:
    from latex2mathml.converter import convert

    mathml: str = convert(latex, display="block" if options["display_mode"] else "inline")
    return mathml


def _highlight(code: str, language: str, _: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    # Sessions stand in ```python blocks, and Pygments has a lexer of their own for prompts.
    name = "pycon" if code.startswith(">>>") else language or "text"
    coloured: str = highlight(code, get_lexer_by_name(name), HtmlFormatter(nowrap=True))
    return coloured


def _image(folder: Path, token: Any) -> str:
    data = base64.b64encode((folder / str(token.attrs["src"])).read_bytes()).decode("ascii")
    return f"<img src='data:image/svg+xml;base64,{data}' alt='{html.escape(token.content, quote=True)}'>"


def _link(folder: Path, token: Any) -> str:
    """A link to a lesson says its command when pointed at; a link to a file of the package opens it."""
    target = str(token.attrs["href"])
    if found := LESSON_LINK.match(target):
        number = int(found[1])
        return f"<a href='lesson{number}.html' title='regard learn {number}'>"
    if target.startswith(("https://", "#")):
        return f"<a href='{html.escape(target, quote=True)}'>"
    file = (folder / target).resolve()
    # The documentation is not in an installed package.
    return f"<a href='{html.escape(file.as_uri(), quote=True)}'>" if file.exists() else "<a>"


def _code(text: str) -> str:
    known = find_mistake(text)
    title = f" class='mistake' title='{html.escape(known.effect, quote=True)}'" if known else ""
    return f"<code{title}>{html.escape(text)}</code>"
