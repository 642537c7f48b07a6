"""Edits of a lesson's solution: a wrong way to do a task is told by the text that it changes there."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

from regard.learn.course import LESSONS
from regard.learn.exercise import definition_of, marked_statements


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
    exec(_solution(noun), names)
    return names


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
    return definition_of(_solution(noun), name)


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


@cache
def lines_to_write(noun: str, name: str) -> str:
    """Return the statements of a definition that the learner writes."""
    return "; ".join(marked_statements(definition(noun, name)))


@cache
def _solution(noun: str) -> str:
    (solution,) = (lesson.solution for lesson in LESSONS if lesson.noun == noun)
    return solution
