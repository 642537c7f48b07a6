"""Grading: the files of one learner or of a class, judged task by task, with a point for each task.

Every file runs in a process of its own with limits on time and memory, as `--check` does. A file that hangs,
crashes, is missing or takes its answer from Regard gets no points and a sentence that says why. A grade never
holds a hint or the right number. Like `sandbox`, this contains accidents: it does not stop a file that is
written to deceive it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.checker.errors import CheckError
from regard.learn.exercise import make_exercise
from regard.learn.judgement import judge_in_process, read_program, tasks_of
from regard.learn.lesson import Lesson, Outcome


@dataclass(frozen=True)
class TaskGrade:
    """The grade of one task: 1 point or 0, and for 0 a sentence that says why.

    The status is that of an `Outcome`, or "not judged"; `mistake` is its name if it is a known one.
    """

    task: str
    points: int
    status: str
    mistake: str = ""
    message: str = ""


@dataclass(frozen=True)
class LessonGrade:
    """The grades of the tasks of one lesson file."""

    lesson: int
    file: str
    tasks: tuple[TaskGrade, ...]

    @property
    def points(self) -> int:
        """The points of all tasks."""
        return sum(task.points for task in self.tasks)

    @property
    def of(self) -> int:
        """The points that there are."""
        return len(self.tasks)


@dataclass(frozen=True)
class SubmissionGrade:
    """The grades of everything that one learner has handed in; `name` is that of the folder."""

    name: str
    lessons: tuple[LessonGrade, ...]

    @property
    def points(self) -> int:
        """The points of all lessons."""
        return sum(lesson.points for lesson in self.lessons)

    @property
    def of(self) -> int:
        """The points that there are."""
        return sum(lesson.of for lesson in self.lessons)

    def to_dict(self) -> dict[str, Any]:
        """Return the grades as plain data that JSON can hold."""
        lessons = [{"points": lesson.points, "of": lesson.of} | asdict(lesson) for lesson in self.lessons]
        return {"name": self.name, "points": self.points, "of": self.of, "lessons": lessons}


def grade_folder(
    folder: Path,
    lessons: Sequence[Lesson],
    *,
    seed: int = 0,
    timeout: float | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> list[SubmissionGrade]:
    """Grade a folder of lesson files, or every folder in it if it has no lesson files itself.

    Arguments:
        folder: the folder of one learner, or of a class with a folder for each learner.
        lessons: the lessons to grade; those without code are left out.
        seed: of the random inputs on which the files are tried.
        timeout: seconds that a file may run; the limit of its lesson if None.
        tell: called with the file that is graded next.

    Raises ValueError if there is nothing to grade.
    """
    with_code = [lesson for lesson in lessons if lesson.has_code]
    if not with_code:
        raise ValueError("there is nothing to write in this lesson, so that there is nothing to grade")
    submissions = [folder]
    if not any((folder / lesson.file).exists() for lesson in with_code):
        submissions = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    if not submissions:
        files = ", ".join(lesson.file for lesson in with_code[:3])
        raise ValueError(f"--grade: {folder} holds neither lesson files ({files}, …) nor folders with them")
    grades = []
    for submission in submissions:
        graded = []
        for lesson in with_code:
            tell(str(submission / lesson.file))
            graded.append(grade_file(lesson, submission / lesson.file, seed=seed, timeout=timeout))
        grades.append(SubmissionGrade(submission.resolve().name, tuple(graded)))
    return grades


def grade_file(lesson: Lesson, path: Path, *, seed: int = 0, timeout: float | None = None) -> LessonGrade:
    """Grade one file: what cannot be judged gets no points, and a sentence."""
    names = [task.name for task in tasks_of(lesson)]
    try:
        if not path.exists():
            raise CheckError(f"{path.name} is missing")
        if borrowed := borrowed_modules(read_program(lesson, path), make_exercise(lesson.solution)):
            raise CheckError(f"it imports {borrowed[0]}, which holds the answers: write them instead")
        outcomes = judge_in_process(lesson, path, timeout=timeout, seed=seed)
        if [outcome.task for outcome in outcomes] != names:
            raise CheckError("the code has written a report of its own: no verdict")
    except CheckError as error:
        tasks = tuple(TaskGrade(name, 0, "not judged", message=str(error)) for name in names)
    else:
        tasks = tuple(map(_grade, outcomes))
    return LessonGrade(lesson.number, path.name, tasks)


def _grade(outcome: Outcome) -> TaskGrade:
    if outcome.status in ("wrong", "unfinished"):
        return TaskGrade(outcome.task, 0, outcome.status, outcome.mistake, outcome.message)
    return TaskGrade(outcome.task, 1, outcome.status)  # its message may hold the number to predict


def borrowed_modules(program: str, exercise: str) -> list[str]:
    """Return the modules of Regard that a program imports when it is judged, and its exercise does not.

    >>> borrowed_modules("from regard.stages import Head", "import torch")
    ['regard.stages']
    """
    return sorted(set(_regard_imports(program)) - set(_regard_imports(exercise)))


def _regard_imports(program: str) -> Iterator[str]:
    for statement in ast.parse(program).body:
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            continue  # it does not run when the file is judged
        for node in ast.walk(statement):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            yield from (name for name in names if name.partition(".")[0] == "regard")
