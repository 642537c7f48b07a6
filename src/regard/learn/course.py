"""The course: every lesson in its order, as `lessons.toml` has them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from regard.learn.lesson import Lesson

LESSONS = tuple(
    Lesson(**fields | {"answers": tuple(map(tuple, fields.get("answers", ())))})
    for fields in tomllib.loads(Path(__file__).with_name("lessons.toml").read_text(encoding="utf-8"))[
        "lessons"
    ]
)


def get_lesson(number: int) -> Lesson:
    """Return the lesson of this number; ValueError if there is none."""
    for lesson in LESSONS:
        if lesson.number == number:
            return lesson
    raise ValueError(f"lesson: expected a number from 0 to {LESSONS[-1].number}, got {number}")


def next_lesson(lesson: Lesson) -> Lesson | None:
    """Return the lesson after this one; None after the last."""
    after = LESSONS.index(lesson) + 1
    return LESSONS[after] if after < len(LESSONS) else None
