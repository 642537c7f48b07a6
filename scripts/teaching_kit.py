"""What the site offers to teachers: a syllabus, all notebooks in one archive, and slides of the lessons.

Everything is made from the lessons themselves: what they say of their length and of what comes before, their
notebooks, pictures and takeaways. A new lesson enters by itself. `scripts.docs` calls this.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zipfile
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from regard.learn import LESSONS, Lesson, make_notebook

TEMPLATE = Path(__file__).with_name("slides.html")
NOTEBOOKS, SLIDES = "_static/regard-lessons.zip", "_static/slides.html"
PICTURE = re.compile(r"!\[([^\]]*)\]\(([\w.-]+\.svg)\)")
PICTURES = re.compile(r"(?:^!\[[^\]]*\]\([\w.-]+\.svg\)\n)+", re.MULTILINE)  # those of one paragraph
FORMULA = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)
NOTE = """\
The lessons of Regard as notebooks. Open one in Jupyter or in a hosted notebook; its first cell says how to
install Regard, its last two are the exercise and what judges it.

The texts and pictures are by the Regard authors, under CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/); the code is under the Apache License 2.0.
"""


def syllabus() -> str:
    """Return the table of the lessons for teachers, and how long all of them take."""
    followers: dict[int, list[int]] = {lesson.number: [] for lesson in LESSONS}
    rows = []
    for lesson in LESSONS:
        for number in lesson.plan.after:
            followers[number].append(lesson.number)
    for lesson in LESSONS:
        before = ", ".join(map(str, lesson.plan.after)) or "–"
        after = followers[lesson.number]
        needed = f"no: {', '.join(map(str, after))} build on it" if after else "yes"
        name = f"[{lesson.number} {lesson.title}]({lesson.folder.name}.md)"
        rows.append(f"| {name} | {lesson.plan.minutes} | {lesson.plan.difficulty} | {before} | {needed} |")
    minutes = sum(lesson.plan.minutes for lesson in LESSONS)
    total = f"All {len(LESSONS)} lessons take about {round(minutes / 60)} hours."
    head = ["| lesson | minutes | level | after | leave it out? |", "|---|---:|---:|---|---|"]
    return "\n".join([*head, *rows, "", total, ""])


def downloads() -> str:
    """Return the links to the archive of notebooks and to the slides, for a page in a folder of the site."""
    return (
        f'<a class="reference" href="../{NOTEBOOKS}">All lessons as notebooks, one zip file</a> · '
        f'<a class="reference" href="../{SLIDES}">Slides of all lessons, one HTML file</a>\n'
    )


def write_kit(folder: Path) -> None:
    """Write the archive of notebooks and the slides into the folder of the gathered site."""
    (folder / "_static").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / NOTEBOOKS, "w", zipfile.ZIP_DEFLATED) as archive:
        for lesson in LESSONS:
            notebook = json.dumps(make_notebook(lesson), ensure_ascii=False, indent=1)
            archive.writestr(f"regard-lessons/lesson{lesson.number}.ipynb", notebook)
        archive.writestr("regard-lessons/README.txt", NOTE)
    (folder / SLIDES).write_text(slides(), encoding="utf-8")


def slides() -> str:
    """Return the slides as one HTML file: for each lesson its idea, its pictures and its takeaways."""
    shown = [_title_slide("Attention from nothing", "The lessons of Regard. Arrow keys turn the slides.")]
    for lesson in LESSONS:
        shown += _lesson_slides(lesson)
    return TEMPLATE.read_text(encoding="utf-8").replace("<!-- slides -->", "\n".join(shown))


def _lesson_slides(lesson: Lesson) -> list[str]:
    title = f"{lesson.number} {lesson.title}"
    # The first formula is that of the lesson; lesson 0 has none.
    formula = FORMULA.search(lesson.text)
    below = convert(formula[1].strip(), display="block") if formula else ""
    found = [_title_slide(title, lesson.idea[0].upper() + lesson.idea[1:] + ".", below)]
    for row in PICTURES.findall(lesson.text):
        images = "".join(_image(lesson, alt, name) for alt, name in PICTURE.findall(row))
        found.append(f"<section><h2>{html.escape(title)}</h2><figure>{images}</figure></section>")
    takeaways = lesson.text.split("## Takeaways\n")[1].split("\n## ")[0]
    found.append(f"<section><h2>{html.escape(title)}: takeaways</h2>{_render(takeaways)}</section>")
    return found


def _image(lesson: Lesson, alt: str, name: str) -> str:
    data = base64.b64encode((lesson.folder / name).read_bytes()).decode("ascii")
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{html.escape(alt)}">'


def _title_slide(title: str, sentence: str, below: str = "") -> str:
    return f"<section class='title'><h1>{html.escape(title)}</h1>{_render(sentence)}{below}</section>"


def _render(markdown: str) -> str:
    """Return Markdown as HTML, formulas as MathML, and links as their text: they lead to other files."""
    text = re.sub(r"(?<!!)\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    renderer = MarkdownIt("commonmark").use(dollarmath_plugin, renderer=lambda latex, _: convert(latex))
    rendered: str = renderer.render(text)
    return rendered
