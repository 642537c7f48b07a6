"""The bibliography of the course: every entry of the lessons' sections *References*, and where it is cited.

`scripts.docs` puts it in place of the comment `<!-- references -->`, so that it cannot be out of date.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from regard.learn.course import LESSONS
from regard.learn.lesson import Lesson

ENTRY = re.compile(
    r"(?P<authors>.+?), (?P<year>\d{4}), \*(?P<title>.+?)\*, \[(?P<name>[^\]]+)\]\((?P<url>https://\S+?)\)"
)


class Reference(NamedTuple):
    """An entry of a lesson's list of references."""

    authors: str
    year: int
    title: str
    name: str  # of the link, such as arXiv:1706.03762
    url: str


def references_of(lesson: Lesson) -> list[Reference]:
    """Return the references of a lesson; ValueError for an entry without authors, year, title and link."""
    _, _, section = lesson.text.partition("\n## References\n")
    items = re.findall(r"^- (.+(?:\n  .+)*)", section.partition("\n## ")[0], flags=re.MULTILINE)
    references = []
    for item in items:
        entry = ENTRY.match(re.sub(r"\s+", " ", item))
        if entry is None:
            raise ValueError(f"lesson {lesson.number}: expected authors, year, *title*, [name](link): {item}")
        references.append(Reference(**{**entry.groupdict(), "year": int(entry["year"])}))
    return references


def bibliography() -> str:
    """Return the references of all lessons as a Markdown list, by year, each with links to its lessons."""
    # By address: two lessons may name the authors of a paper differently.
    entries: dict[str, Reference] = {}
    lessons_of: dict[str, list[Lesson]] = {}
    for lesson in LESSONS:
        for reference in references_of(lesson):
            entries.setdefault(reference.url, reference)
            lessons_of.setdefault(reference.url, []).append(lesson)
    lines = []
    for authors, year, title, name, url in sorted(entries.values(), key=lambda entry: (entry.year, entry)):
        cited = ", ".join(f"[{lesson.number}]({lesson.folder.name}.md)" for lesson in lessons_of[url])
        word = "lesson" if len(lessons_of[url]) == 1 else "lessons"
        lines.append(f"- {authors}, {year}, *{title}*, [{name}]({url}) ({word} {cited})\n")
    return "".join(lines)
