"""What teachers get: every lesson is in the syllabus, the archive, the slides and the open questions."""

import json
import re
import zipfile
from pathlib import Path

import nbformat

from regard.learn.course import LESSONS
from scripts import teaching_kit

LEARN = Path(__file__).parent.parent / "docs" / "learn"


def test_the_kit_has_every_lesson(tmp_path):
    teaching_kit.write_kit(tmp_path)
    with zipfile.ZipFile(tmp_path / teaching_kit.NOTEBOOKS) as archive:
        assert "CC BY 4.0" in archive.read("regard-lessons/README.txt").decode()
        for lesson in LESSONS:
            text = archive.read(f"regard-lessons/lesson{lesson.number}.ipynb").decode()
            nbformat.validate(nbformat.from_dict(json.loads(text)))
    slides = (tmp_path / teaching_kit.SLIDES).read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=.(?!data:)", slides)  # it is one file
    for lesson in LESSONS:
        assert f"<h1>{lesson.number} {lesson.title}</h1>" in slides
        assert f"({lesson.folder.name}.md)" in teaching_kit.syllabus()
    assert slides.count("<img ") == sum(lesson.text.count(".svg)") for lesson in LESSONS)


def test_what_a_lesson_needs_cannot_be_left_out():
    rows = dict(re.findall(r"^\| \[(\d+) .*\| ([^|]+) \|$", teaching_kit.syllabus(), flags=re.MULTILINE))
    needed = {number for lesson in LESSONS for number in lesson.plan.after}
    assert {number for number, text in rows.items() if text == "yes"} == {
        str(lesson.number) for lesson in LESSONS if lesson.number not in needed
    }


def test_every_lesson_has_open_questions():
    sections = re.split(
        r"^## (\d+)$", (LEARN / "questions.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    questions = {int(number): text for number, text in zip(sections[1::2], sections[2::2], strict=True)}
    for lesson in LESSONS:
        assert len(re.findall(r"^- ", questions[lesson.number], flags=re.MULTILINE)) >= 2
