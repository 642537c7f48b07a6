"""Judging a lesson file: in a process of its own with limits on time and memory, or in this one.

A file that is missing, empty or no Python is answered without running anything.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.checker.errors import CheckError
from regard.checker.sandbox import run_in_process
from regard.checker.subject.locate import import_place
from regard.learn.course import get_lesson
from regard.learn.exercise import Blank, find_blanks, find_names, make_exercise
from regard.learn.hints.ladder import add_hints
from regard.learn.lesson import Lesson, Outcome, Task
from regard.learn.wrong_ways import read_pairs
from regard.support.files import TextFileError, read_text
from regard.support.quick_torch import complete_torch, import_torch_quickly

MAX_BYTES = 1 << 20  # of a lesson file
# What is shown of what the learner's code prints: characters in all, lines, and characters of a line.
PRINTED, LINES, WIDTH = 20_000, 12, 200
WHOLE_TORCH = re.compile(r"\b(meta|compile|export|fx)\b")  # what a program needs more of PyTorch for


def judge_in_process(
    lesson: Lesson,
    path: Path,
    *,
    timeout: float | None = None,
    seed: int = 0,
    hints: bool = False,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> list[Outcome]:
    """Judge the learner's file in a process of its own; return the outcome of each task.

    Arguments:
        lesson: the lesson that the file is for.
        path: the file.
        timeout: seconds that it may run; the lesson's own limit if None.
        seed: of the random inputs on which it is tried.
        hints: whether to find hints, which takes longer; without them an outcome only tells that it has one.
        tell: called with each line of progress.

    Raises `CheckError` with one sentence if the file cannot be judged at all.
    """
    # PyTorch takes two seconds to start, and an untouched file needs none of it.
    if untouched := _find_untouched(lesson, read_program(lesson, path)):
        return untouched
    request = {"lesson": lesson.number, "spec": str(path), "seed": seed, "hints": hints}
    limit = lesson.timeout if timeout is None else timeout
    last = run_in_process(
        "regard.learn.worker", request, str(path), path.name, timeout=limit, memory=4.0, tell=tell
    )
    return [Outcome.from_dict(outcome) for outcome in last["report"]]


def read_program(lesson: Lesson, path: Path) -> str:
    """Return the text of a lesson file, or raise `CheckError`: missing, empty, or no Python."""
    if not path.exists():
        raise CheckError(f"there is no {path}: regard learn {lesson.number} writes it")
    try:
        program = read_text(path, TextFileError, "a Python file", MAX_BYTES)
        tree = ast.parse(program)
    except TextFileError as error:
        raise CheckError(str(error)) from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        shown = f": {error.text.strip()}" if error.text else ""
        raise CheckError(
            f"{path.name}{line}: {error.msg}{shown}  (Python cannot read the file until this is fixed)"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CheckError(f"{path.name} is not Python: {error}") from None
    if not tree.body:
        raise CheckError(f"{path.name} is empty: regard learn {lesson.number} --again writes it anew")
    return program


def judge(
    lesson: Lesson,
    path: Path,
    write_line: Callable[..., None] = lambda **fields: None,
    hints: bool = True,
) -> list[Outcome]:
    """Judge the learner's file in this process. It runs the file: see `judge_in_process`."""
    program = read_program(lesson, path)
    if untouched := _find_untouched(lesson, program):
        return untouched
    tasks = tasks_of(lesson)
    blanks = {task.name: find_blanks(program, task.name) for task in tasks}
    printed = _PrintedText()
    try:
        with contextlib.redirect_stdout(printed):
            # Only now: importing runs the learner's code.
            module = import_place(str(path))
            write_line(phase="checking")
            return [
                _unfinished(task.name, blanks[task.name])
                if blanks[task.name]
                else judge_task(lesson, task, module, path, write_line, hints)
                for task in tasks
            ]
    finally:
        if text := printed.first_lines():
            write_line(printed=text)


class _PrintedText(io.StringIO):
    """What the learner's code prints, of which the first lines are kept: a judge calls it many times."""

    def write(self, text: str) -> int:
        """Keep a text as long as there is room for it."""
        if self.tell() < PRINTED:
            super().write(text[:PRINTED])
        return len(text)

    def first_lines(self) -> str:
        """Return the first lines, and whether there were more."""
        lines = self.getvalue().strip().splitlines()
        more = ["…"] if len(lines) > LINES else []
        return "\n".join([line[:WIDTH] for line in lines[:LINES]] + more)


def judge_module(lesson: Lesson) -> Any:
    """Return the module that judges a lesson: it has `TASKS`."""
    return importlib.import_module(f"regard.learn.judges.{lesson.noun}")


def tasks_of(lesson: Lesson) -> tuple[Task, ...]:
    """Return the tasks of a lesson, in the order of its file."""
    tasks: tuple[Task, ...] = judge_module(lesson).TASKS
    return tasks


def is_done(outcomes: list[Outcome]) -> bool:
    """Whether every task of a lesson is done."""
    return all(outcome.status in ("done", "guessed") for outcome in outcomes)


def judge_request(request: dict[str, Any], write_line: Callable[..., None]) -> list[dict[str, Any]]:
    """Judge what a request of `judge_in_process` names; the worker calls it."""
    lesson = get_lesson(request["lesson"])
    path = Path(request["spec"])
    # PyTorch makes so many objects when it is imported that collecting garbage takes a tenth of that time.
    gc.disable()
    import_torch_quickly()
    if WHOLE_TORCH.search(read_program(lesson, path)):
        complete_torch()
    tasks_of(lesson)
    gc.freeze()
    gc.enable()
    # Not at the top: it imports PyTorch, which is to happen while no garbage is collected.
    from regard.learn.judges.common.inputs import inputs_of

    with inputs_of(request["seed"]):
        return [outcome.to_dict() for outcome in judge(lesson, path, write_line, request["hints"])]


def _find_untouched(lesson: Lesson, program: str) -> list[Outcome]:
    """What to say about each task as long as none of them is written; [] once one is."""
    exercise = make_exercise(lesson.solution)
    names = [name for x in ast.parse(exercise).body for name in find_names(x) if find_blanks(exercise, name)]
    blanks = {name: find_blanks(program, name) for name in names}
    return [_unfinished(name, blanks[name]) for name in names] if all(blanks.values()) else []


def _unfinished(name: str, blanks: list[Blank]) -> Outcome:
    first, *others = blanks
    more = f"; also line {', '.join(str(blank.line) for blank in others)}" if others else ""
    code = first.text.split("  #")[0]
    return Outcome(name, "unfinished", f"still to write: line {first.line}, {code}{more}")


def judge_task(
    lesson: Lesson,
    task: Task,
    module: ModuleType,
    path: Path,
    write_line: Callable[..., None] = lambda **fields: None,
    hints: bool = True,
) -> Outcome:
    """Judge one task of a learner's file, which is imported as `module`, and say how to fix what is wrong.

    Without `hints` there is one only if there would be one with them, which takes longer to find.
    """
    return add_hints(_judge_task(lesson, task, module, path, write_line), task, module, lesson, hints)


def _judge_task(
    lesson: Lesson, task: Task, module: ModuleType, path: Path, write_line: Callable[..., None]
) -> Outcome:
    if not hasattr(module, task.name):
        return Outcome(
            task.name, "unfinished", f"{path.name} has no `{task.name}`, and the lesson asks for that name"
        )
    try:
        progress = [lambda doing: write_line(doing=doing)] if task.reports_progress else []
        return task.outcome(getattr(module, task.name), module, *progress)
    except NotImplementedError as error:
        return Outcome(task.name, "unfinished", f"still to write: {error or task.name}")
    except Exception as error:
        # Here, since it imports PyTorch, and the command that starts the worker needs none.
        from regard.learn.judges.common.first_run import error_outcome

        return error_outcome(task.name, error, module, read_pairs(lesson.noun, task.name, "errors"))
