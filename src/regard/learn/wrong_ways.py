"""What learners do wrong, and what is said to them: the tables of each lesson's file `judge.toml`.

A wrong way is an edit of the lesson's solution. Mistakes that lessons name and the checker's catalogue does
not have are those of `mistakes.toml`. Nothing here needs PyTorch: the command that explains a mistake reads
the tables too.
"""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.learn.course import LESSONS
from regard.learn.exercise import definition_of, marked_statements, plain_solution
from regard.learn.lesson import Lesson, UsualMistake

if TYPE_CHECKING:
    from regard.checker.catalogue import Mistake


@dataclass(frozen=True)
class ModelMistake:
    """A mistake outside of attention: its name, what it does, and how to fix it."""

    name: str
    effect: str
    fix: str


def sentence(text: str) -> str:
    """Return a text of several lines, as a table has it, on one."""
    return " ".join(text.split())


MODEL_MISTAKES = {
    name: ModelMistake(name, sentence(entry["effect"]), sentence(entry["fix"]))
    for name, entry in tomllib.loads(
        Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8")
    ).items()
}


def find_mistake(name: str) -> Mistake | ModelMistake | None:
    """Return the mistake of this name, from the checker's catalogue or from here; None if there is none."""
    # Here, since the catalogue imports PyTorch, and the command that prints an answer needs only names.
    from regard.checker.catalogue import CATALOGUE

    return CATALOGUE.get(name) or MODEL_MISTAKES.get(name)


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


class WrongWay(NamedTuple):
    """An edit that makes the solution wrong, and what is said to a learner whose answers are the same.

    `right` is a part of the solution, and `wrong` what replaces it; of several lines each is a part. A
    `mistake` of the catalogue or of `mistakes` brings its effect; `said` replaces it, where the lesson has
    words of its own. The hint is the solution's line, unless there is a better `hint`.
    """

    right: str
    wrong: str
    mistake: str = ""
    said: str = ""
    hint: str = ""


@cache
def lesson_of(noun: str) -> Lesson:
    """Return the lesson whose judge has this name."""
    (lesson,) = (lesson for lesson in LESSONS if lesson.noun == noun)
    return lesson


@cache
def judge_table(noun: str) -> dict[str, Any]:
    """Return the tables of a lesson, by the names of its tasks."""
    return tomllib.loads((lesson_of(noun).folder / "judge.toml").read_text(encoding="utf-8"))


def read_pairs(noun: str, task: str, key: str) -> tuple[tuple[Any, str], ...]:
    """Return the pairs that a task's table has under a key: errors with hints, or answers with reasons."""
    return tuple((first, sentence(said)) for first, said in judge_table(noun).get(task, {}).get(key, ()))


@cache
def wrong_ways(noun: str, task: str) -> tuple[WrongWay, ...]:
    """Return the wrong ways of a task, in the order in which they are tried."""
    return tuple(
        WrongWay(
            way["right"],
            wrong,
            way.get("mistake", ""),
            sentence(way.get("said", "")),
            sentence(way.get("hint", "")),
        )
        for way in judge_table(noun)[task].get("ways", ())
        # Several edits of one place may be one mistake.
        for wrong in (way["wrong"] if isinstance(way["wrong"], list) else [way["wrong"]])
    )


def usual_mistakes(lesson: Lesson) -> tuple[UsualMistake, ...]:
    """Return the mistakes of the table in a lesson's text: edits, or the first wrong ways of these names."""
    return tuple(
        _as_usual(lesson.noun, mistake) if isinstance(mistake, str) else UsualMistake(**mistake)
        for mistake in judge_table(lesson.noun)["usual"]
    )


def _as_usual(noun: str, mistake: str) -> UsualMistake:
    """The first wrong way of this name, as a definition and what replaces it."""
    return next(
        UsualMistake(mistake, definition(noun, task), edit(noun, task, way.right, way.wrong), task)
        for task in tasks_with_ways(noun)
        for way in wrong_ways(noun, task)
        if way.mistake == mistake
    )


def tasks_with_ways(noun: str) -> list[str]:
    """Return the names of the functions and classes of which a lesson has wrong ways."""
    return [task for task, table in judge_table(noun).items() if "ways" in table]


def edit(noun: str, name: str, right: str, wrong: str) -> str:
    """Return a definition of a solution with other text in it.

    Arguments:
        noun: of the lesson.
        name: of a function or class.
        right: a part of its definition; of several lines each is a part.
        wrong: what stands in its place, a line for each of `right`.
    """
    text = definition(noun, name)
    new_parts = dict(zip(right.split("\n"), wrong.split("\n"), strict=True))
    if missing := [part for part in new_parts if part not in text]:
        raise ValueError(f"right: {name} in lesson {noun} has no {missing[0]!r}")
    # All at once, so that lines can change places.
    return re.sub("|".join(map(re.escape, new_parts)), lambda found: new_parts[found[0]], text)


@cache
def definition(noun: str, name: str) -> str:
    """Return the lines of a solution that define a name."""
    return definition_of(lesson_of(noun).solution, name)


# Parsing takes most of the time in which a judge goes through its wrong ways.
@cache
def statements_with(noun: str, name: str, parts: str) -> str:
    """Return the statements of a definition that hold a part; of several lines each is a part."""
    text = definition(noun, name)
    sources = (
        ast.get_source_segment(text, node) or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    )
    return "; ".join(source for source in sources if any(part in source for part in parts.split("\n")))


def hint_for(noun: str, task: str, way: WrongWay) -> str:
    """Return what to write in the place of a wrong way."""
    return way.hint or statements_with(noun, task, way.right)


@cache
def lines_to_write(noun: str, name: str) -> str:
    """Return the statements of a definition that the learner writes."""
    return "; ".join(marked_statements(definition(noun, name)))


@cache
def define(noun: str, name: str, right: str = "", wrong: str = "") -> Any:
    """Return what the solution of a lesson defines under a name, with an edit of that definition."""
    names = _names(noun).copy()
    if right != wrong:
        exec(edit(noun, name, right, wrong), names)
    return names[name]


@cache
def _names(noun: str) -> dict[str, Any]:
    """What the solution of a lesson defines."""
    names: dict[str, Any] = {"__name__": noun}  # not "__main__", whose lines print
    exec(lesson_of(noun).solution, names)
    return names
