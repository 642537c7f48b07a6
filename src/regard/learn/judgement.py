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
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from regard.checker.errors import CheckError
from regard.checker.sandbox import run_in_process
from regard.checker.subject.locate import import_place
from regard.learn.course import get_lesson
from regard.learn.error_hints import GENERAL, STAR, STAR_ERROR, find_hint
from regard.learn.exercise import Blank, find_blanks, find_names, make_exercise, plain_solution
from regard.learn.lesson import Lesson, Outcome, Task, UsualMistake
from regard.learn.mistakes import find_mistake
from regard.support.files import TextFileError, read_text
from regard.support.quick_torch import complete_torch, import_torch_quickly

if TYPE_CHECKING:
    from regard.learn.first_difference import LineDifference

MAX_BYTES = 1 << 20  # of a lesson file
# What is shown of what the learner's code prints: characters in all, lines, and characters of a line.
PRINTED, LINES, WIDTH = 20_000, 12, 200
WHOLE_TORCH = re.compile(r"\b(meta|compile|export|fx)\b")  # what a program needs more of PyTorch for
UNKNOWN_NAME = re.compile(r"\b(NameError|UnboundLocalError): ")
ERROR = re.compile(r"^line \d+, .*(Error|Exception|Warning): |^\w+Error: ", re.DOTALL)  # see `describe_error`


def judge_in_process(
    lesson: Lesson,
    path: Path,
    *,
    timeout: float | None = None,
    seed: int = 0,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> list[Outcome]:
    """Judge the learner's file in a process of its own; return the outcome of each task.

    Arguments:
        lesson: the lesson that the file is for.
        path: the file.
        timeout: seconds that it may run; the lesson's own limit if None.
        seed: of the random inputs on which it is tried.
        tell: called with each line of progress.

    Raises `CheckError` with one sentence if the file cannot be judged at all.
    """
    # PyTorch takes two seconds to start, and an untouched file needs none of it.
    if untouched := _find_untouched(lesson, read_program(lesson, path)):
        return untouched
    request = {"lesson": lesson.number, "spec": str(path), "seed": seed}
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
    lesson: Lesson, path: Path, write_line: Callable[..., None] = lambda **fields: None
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
                else judge_task(lesson, task, module, path, write_line)
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
    """Return the module that judges a lesson: it has `TASKS` and `USUAL_MISTAKES`."""
    return importlib.import_module(f"regard.learn.judges.{lesson.noun}")


def tasks_of(lesson: Lesson) -> tuple[Task, ...]:
    """Return the tasks of a lesson, in the order of its file."""
    tasks: tuple[Task, ...] = judge_module(lesson).TASKS
    return tasks


def usual_mistakes_of(lesson: Lesson) -> tuple[UsualMistake, ...]:
    """Return the usual mistakes of a lesson."""
    mistakes: tuple[UsualMistake, ...] = judge_module(lesson).USUAL_MISTAKES
    return mistakes


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
    from regard.learn.judges.tables.inputs import inputs_of

    with inputs_of(request["seed"]):
        return [outcome.to_dict() for outcome in judge(lesson, path, write_line)]


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
) -> Outcome:
    """Judge one task of a learner's file, which is imported as `module`, and say how to fix what is wrong."""
    return _with_hint(_judge_task(task, module, path, write_line), task, module, lesson)


def _judge_task(task: Task, module: ModuleType, path: Path, write_line: Callable[..., None]) -> Outcome:
    if not hasattr(module, task.name):
        return Outcome(
            task.name, "unfinished", f"{path.name} has no `{task.name}`, and the lesson asks for that name"
        )
    try:
        progress = [lambda doing: write_line(doing=doing)] if task.reports_progress else []
        return task.judge(getattr(module, task.name), module, *progress)
    except NotImplementedError as error:
        return Outcome(task.name, "unfinished", f"still to write: {error or task.name}")
    except Exception as error:
        message = describe_error(error, path)
        notes = " ".join(getattr(error, "__notes__", []))  # what the judge has added
        return Outcome(task.name, "wrong", message, hint=notes or find_hint(message))


SINGLE_STAR = re.compile(r"(?<!\*)\*(?!\*)")
MATRIX_PRODUCT = re.compile(r"sum\(|matmul\(|mm\(")  # `einsum` and `bmm` among them


def _with_hint(outcome: Outcome, task: Task, module: ModuleType, lesson: Lesson) -> Outcome:
    """Return an outcome that says how to fix what is wrong: in which line, and what to write there.

    A hint that the judge has for this very mistake comes first, then the first line that differs from the
    solution's, then the fix of a mistake that has a name.
    """
    if outcome.status != "wrong":
        return outcome
    difference = _find_difference(task, module, lesson)
    # All that is wrong may have been recognised together: both signs of a turn turn it the other way round.
    is_known = outcome.hint not in {"", *GENERAL, *task.summaries} and not ERROR.search(outcome.message)
    if difference is not None and task.is_quick and not outcome.mistake and not is_known:
        outcome = _with_name(outcome, task, module, lesson, difference)
    if difference is None or not difference.right:
        known = find_mistake(outcome.mistake)
        hint = outcome.hint or (known.fix if known else "")
        if STAR_ERROR.search(outcome.message):
            hint = STAR if not hint or hint in GENERAL else f"{STAR}; {hint}"
        if difference is not None and (not hint or hint in GENERAL):
            hint = f"{hint and f'{hint}; '}line {difference.line}: {difference.said}"
        return replace(outcome, hint=hint)
    write = f"{'after ' if difference.after else ''}line {difference.line}: {difference.right}"
    # The line that raised an error may not be the one to blame, and a hint for it would mislead.
    elsewhere = not difference.raised and outcome.hint not in task.error_hints
    misleads = outcome.hint in GENERAL | task.summaries or (elsewhere and ERROR.search(outcome.message))
    reason = "" if misleads or outcome.hint in difference.right else outcome.hint
    if not outcome.mistake or difference.after:
        reason = reason or difference.said
    if not difference.after and _has_star_for_at(_line_of(module, difference.line), difference.right):
        reason = STAR
    return replace(outcome, hint=f"{reason.rstrip('.')}; {write}" if reason else write)


def _has_star_for_at(own: str, right: str) -> bool:
    """Whether a line of the learner's has `*` where the right one has `@`; a sum of products is one, too."""
    products, right_products = (len(SINGLE_STAR.findall(line)) for line in (own, right))  # a power is none
    other = MATRIX_PRODUCT.search(own) is not None
    return not other and own.count("@") < right.count("@") and products > right_products


def _line_of(module: ModuleType, number: int) -> str:
    """A line of the learner's file, without its comment."""
    program = Path(str(module.__file__)).read_text(encoding="utf-8")
    return program.splitlines()[number - 1].split("  #")[0].strip()


def _find_difference(task: Task, module: ModuleType, lesson: Lesson) -> LineDifference | None:
    """Where the learner's code first differs from the solution; None if that cannot be told."""
    if not task.trials:
        return None
    # Here, since it imports PyTorch, and the command that starts the worker needs none.
    from regard.learn.first_difference import find_first_difference

    # The learner's code may do anything, and an answer without this hint is better than none.
    with contextlib.suppress(Exception):
        solution = plain_solution(lesson.solution)
        tried = (find_first_difference(task.name, trial, module, solution) for trial in task.trials)
        found = (difference for difference in tried if difference is not None)
        # Of several mistakes one trial may show the second, and a later trial the first.
        return min(found, key=lambda x: x.line, default=None) if task.is_quick else next(found, None)
    return None


def _with_name(
    outcome: Outcome, task: Task, module: ModuleType, lesson: Lesson, difference: LineDifference
) -> Outcome:
    """Return an outcome with the name of its first mistake, which a second one hides.

    The first wrong line is put into the solution, where it is the only mistake, and judged there.
    """
    solution = plain_solution(lesson.solution)
    own = _line_of(module, difference.line)
    if difference.after or difference.raised or solution.count(difference.right) != 1:
        return outcome
    alone = ModuleType("alone")
    alone.__file__ = module.__file__
    # Both are the learner's lines, and what they raise has been said already.
    with contextlib.suppress(Exception):
        exec(solution.replace(difference.right, own), vars(alone))
        first = task.judge(getattr(alone, task.name), alone)
        # A line that reads other names of the learner's says nothing without the lines around it.
        if UNKNOWN_NAME.search(first.message) and not UNKNOWN_NAME.search(outcome.message):
            return outcome
        if first.status == "wrong" and (first.mistake or first.hint not in task.summaries):
            message = outcome.message
            # Put into the solution, the line may raise the same error, there without its number.
            if not outcome.message.endswith(first.message):
                message = f"{first.message.rstrip('.')}. After that: {outcome.message}"
            return replace(first, message=message)
    return outcome


def describe_error(error: BaseException, path: Path) -> str:
    """Return an error of the learner's code in a sentence, with the last line of the file that it passed."""
    # By the name of the file: the frames of PyTorch and of the judge are not what the learner wrote.
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    text = (str(error).strip().splitlines() or [""])[0]
    where = f"line {lines[-1].lineno}, {str(lines[-1].line).split('  #')[0].rstrip(':')}: " if lines else ""
    # An error of PyTorch may print whole tensors.
    return f"{where}{type(error).__name__}: {text}"[:400]
