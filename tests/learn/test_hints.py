"""Every hint is followed: none may lead into another error, or to the same verdict."""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path

import pytest

from regard.checker.subject.locate import import_place
from regard.learn.course import LESSONS, get_lesson
from regard.learn.exercise import find_names, plain_solution
from regard.learn.judgement import judge_task, tasks_of, usual_mistakes_of
from regard.learn.lesson import Lesson, Outcome, Task
from tests.sampling import share

LINE = re.compile(r"(after )?line (\d+): (.+)$", re.DOTALL)
ROUNDS = 3  # a program with two mistakes needs two hints
TABLES = tomllib.loads(Path(__file__).with_name("beginners_mistakes.toml").read_text(encoding="utf-8"))
HINTED = TABLES["hinted"]
# A lesson, the prediction in its solution, a guess in its place, and what is said to it.
GUESSES = (
    (1, "= 0.4298", "= 1 / 6", "guessed", "is 0.4298"),
    (1, "= 0.4298", "= 0.45", "done", "is 0.4298"),
    (1, "= 0.4298", "= 46", "wrong", "between 0 and 1"),
    (2, "= 0.4743", "= 0.8187", "guessed", "is 0.4743"),
    (3, "= math.sqrt(64)", "= 16", "wrong", "more than 10% off"),
    (5, "= 1.503", "= 0.7518", "wrong", "multiplies them by"),
    (5, "= 1.503", "= 1.0", "wrong", "on average only"),
    (5, "= 1.503", "= 0.993", "wrong", "where the last weight is dropped"),
    (6, "= 12288", "= 12288 * 8", "wrong", "as wide as the model"),
    (6, "= 12288", "= 1536", "wrong", "one of the eight heads"),
    (7, "the_map = 12", "the_map = 36", "wrong", "read themselves"),
    (7, "the_map = 12", "the_map = 8", "wrong", "counts the tokens"),
    (8, "= -0.99", "= 0.99", "wrong", "below 0"),
    (8, "= -0.99", "= 1.0", "wrong", "same position"),
    (8, "= -0.99", "= 0.1411", "wrong", "the sine"),
    (9, "a_cache = 131", "a_cache = 65.5", "guessed", "is 131.1"),
    (11, "the_loss = 2.5", "the_loss = 10", "guessed", "is 2.49"),
    (11, "= (4, 2)", "= (4, 3)", "wrong", "the clearest head gives 0.76"),
    (12, "= 1e-6", "= 1e-7", "done", "you guessed 1e-07"),
    (12, "= 1e-6", "= 0", "guessed", "you guessed 0"),
)


def cases(table: str) -> list[tuple[int, str, str]]:
    """The lesson, the right text and the wrong one of every mistake of a table."""
    return [
        (int(number), right, wrong)
        for number, mistakes in TABLES[table].items()
        for right, wrongs in mistakes.items()
        for wrong in wrongs
    ]


# Those of lessons 13 to 17 are as many as all before, and judged by one mechanism: a run has a share of them.
LATE = 13
EARLY_MISTAKES = [case for case in cases("mistakes") if case[0] < LATE]
LATE_MISTAKES = [case for case in cases("mistakes") if case[0] >= LATE]
# The checker takes a second to name one of these, so that a run has a share of them.
SLOW = [
    *cases("by_checker"),
    *(
        (lesson.number, mistake.right, mistake.wrong)
        for lesson in LESSONS
        if lesson.has_code
        for mistake in usual_mistakes_of(lesson)
    ),
]


def task_with(lesson: Lesson, text: str) -> Task:
    """The task of a lesson in whose solution a text stands."""
    line = lesson.solution[: lesson.solution.index(text)].count("\n") + 1
    statements = ast.parse(lesson.solution).body
    (names,) = (find_names(x) for x in statements if x.lineno <= line <= (x.end_lineno or 0))
    (task,) = (task for task in tasks_of(lesson) if task.name in names)
    return task


def judge_one(lesson: Lesson, task: Task, program: str) -> Outcome:
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


def follow(program: str, hint: str) -> str:
    """Do what a hint says: write its line in the place of another, or after it."""
    found = LINE.search(hint)
    assert found, hint
    after, number, code = found[1], int(found[2]), found[3]
    statements = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.stmt)]
    statement = next(node for node in statements if node.lineno == number)
    lines = program.splitlines()
    indented = textwrap.indent(code, " " * statement.col_offset)
    end = statement.end_lineno or number
    lines[end if after else number - 1 : end] = [indented]
    return "\n".join(lines) + "\n"


def check_that_hints_lead_to_the_solution(number: int, right: str, wrong: str) -> None:
    lesson = get_lesson(number)
    solution = plain_solution(lesson.solution)
    assert lesson.solution.count(right), right
    program = plain_solution(lesson.solution.replace(right, wrong))
    task = task_with(lesson, right)
    outcome = judge_one(lesson, task, program)
    assert outcome.status == "wrong", outcome
    for _ in range(ROUNDS):
        told = HINTED.get(str(number), {}).get(wrong)
        assert not told or told in outcome.hint, outcome
        program = program.replace(wrong, told) if told else follow(program, outcome.hint)
        if ast.dump(ast.parse(program)) == ast.dump(ast.parse(solution)):
            return  # which is right: `test_lessons`
        followed = judge_one(lesson, task, program)
        if followed.status == "done":
            return
        assert "Error" not in followed.message, (outcome.hint, followed)
        assert (followed.message, followed.mistake) != (outcome.message, outcome.mistake)
        outcome = followed
    raise AssertionError(f"{ROUNDS} hints did not lead to a right program: {outcome}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("number", "right", "wrong"), share(EARLY_MISTAKES, 12) + share(LATE_MISTAKES, 16) + share(SLOW, 48)
)
def test_a_hint_leads_out_of_a_mistake(number: int, right: str, wrong: str) -> None:
    check_that_hints_lead_to_the_solution(number, right, wrong)


@pytest.mark.parametrize(("number", "right", "guess", "status", "said"), GUESSES)
def test_a_guess_is_judged_by_its_distance(
    number: int, right: str, guess: str, status: str, said: str
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution.replace(right, guess))
    outcome = judge_one(lesson, task_with(lesson, right), program)
    assert (outcome.status, said in outcome.message) == (status, True), outcome
