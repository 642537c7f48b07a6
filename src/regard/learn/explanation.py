"""What a lesson says about a mistake: in its table of usual mistakes, in its code, and in its judges."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from regard.learn.course import LESSONS
from regard.learn.exercise import plain_solution
from regard.learn.lesson import Lesson
from regard.learn.wrong_ways import hint_for, tasks_with_ways, usual_mistakes, wrong_ways


@dataclass(frozen=True)
class LessonExplanation:
    """A mistake as a lesson has it: the row of its table, lines of its solution, and other ways to make it.

    `lines` begin with "-" where they are wrong, "+" where they are right, and " " beside. Of `ways`, each is
    the name of a function of the lesson, what is wrong in it, and how to fix it.
    """

    row: str
    lines: tuple[str, ...]
    ways: tuple[tuple[str, str, str], ...]


def explain_in_lesson(lesson: Lesson, name: str) -> LessonExplanation | None:
    """Return what a lesson says about the mistake of this name; None if it does not know it."""
    if not lesson.has_code:
        return None
    row = lesson.says_of(name)
    usual = [mistake for mistake in usual_mistakes(lesson) if mistake.name == name]
    lines: tuple[str, ...] = ()
    if usual:
        right = plain_solution(lesson.solution).splitlines()
        wrong = plain_solution(lesson.solution.replace(usual[0].right, usual[0].wrong)).splitlines()
        lines = _without_docstring(tuple(difflib.unified_diff(wrong, right, lineterm=""))[3:])
    ways = tuple(_ways(lesson, name))
    return LessonExplanation(row, lines, ways) if row or usual or ways else None


def _without_docstring(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a difference without those before it that end a docstring."""
    changed = next((n for n, line in enumerate(lines) if line[:1] in "+-"), 0)
    ends = [n for n, line in enumerate(lines[:changed]) if line.endswith('"""')]
    return lines[ends[-1] + 1 :] if ends else lines


def _ways(lesson: Lesson, name: str) -> list[tuple[str, str, str]]:
    """The wrong ways of this name that a lesson's tables have words of their own for."""
    return [
        (task, way.said, hint_for(lesson.noun, task, way))
        for task in tasks_with_ways(lesson.noun)
        for way in wrong_ways(lesson.noun, task)
        if way.mistake == name and way.said
    ]


def lessons_about(name: str) -> list[Lesson]:
    """Return the lessons that have a mistake of this name in their table of usual mistakes."""
    return [lesson for lesson in LESSONS if lesson.says_of(name)]
