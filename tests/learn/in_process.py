"""Judging without a process of its own, which would take seconds."""

import ast
import sys
import tempfile
from functools import cache
from pathlib import Path

from regard.checker.subject.locate import import_place
from regard.learn.course import get_lesson
from regard.learn.exercise import definition_of, find_names, plain_solution
from regard.learn.judgement import judge, judge_task, tasks_of


def judge_here(lesson, path, tell=lambda line: None, **options):
    """Judge a file in this process, which importing it leaves as it was."""
    places = sys.path.copy()
    try:
        return judge(lesson, path, lambda **fields: tell(fields))
    finally:
        sys.path[:] = places
        sys.modules.pop(f"checked_{path.stem}", None)


def judge_one(lesson, task, program):
    """Judge one task of a program."""
    places = sys.path.copy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / lesson.file
        path.write_text(program, encoding="utf-8")
        try:
            return judge_task(lesson, task, import_place(str(path)), path)
        finally:
            sys.path[:] = places
            sys.modules.pop(f"checked_{path.stem}", None)


def with_form(number, form):
    """A lesson, a task of it, and the solution with another form of that function or class."""
    lesson = get_lesson(number)
    name = form.split()[1].partition("(")[0]
    (task,) = (task for task in tasks_of(lesson) if task.name == name)
    own = plain_solution(definition_of(lesson.solution, name))
    return lesson, task, plain_solution(lesson.solution).replace(own, form.strip("\n"))


def task_with(lesson, text):
    """The task of a lesson in whose solution a text stands."""
    line = lesson.solution[: lesson.solution.index(text)].count("\n") + 1
    statements = ast.parse(lesson.solution).body
    (names,) = (find_names(x) for x in statements if x.lineno <= line <= (x.end_lineno or 0))
    (task,) = (task for task in tasks_of(lesson) if task.name in names)
    return task


@cache
def judge_form(number, form):
    """Judge one task of a lesson with another form of a function or class, once for all tests."""
    return judge_one(*with_form(number, form))


def program_with(number, *swaps, times=-1):
    """The solution of a lesson in which texts are replaced."""
    program = plain_solution(get_lesson(number).solution)
    for right, wrong in swaps:
        assert right in program
        program = program.replace(right, wrong, times)
    return program


@cache
def outcomes_of_solution(number):
    """The outcomes of a lesson's solution, judged once for all tests."""
    lesson = get_lesson(number)
    with tempfile.TemporaryDirectory() as folder:
        return judged(lesson, plain_solution(lesson.solution), Path(folder))


def judged(lesson, program, folder):
    """Judge a program in this process."""
    path = folder / lesson.file
    path.write_text(program, encoding="utf-8")
    return judge_here(lesson, path)
