"""Hints for what is wrong with a task: where to look, then the place and the reason, then the line.

Each time that a learner asks, the next one is told. A line is told only if it was tried: with it in the
learner's file the verdict is better.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from regard.learn.exercise import marks_of, plain_solution
from regard.learn.hints.errors import ERROR, GENERAL, GENERAL_DIFFERENCE
from regard.learn.lesson import Lesson, Outcome, Task
from regard.learn.wrong_ways import find_mistake, usual_mistakes

if TYPE_CHECKING:
    from regard.learn.hints.first_difference import LineDifference

UNKNOWN_NAME = re.compile(r"\b(NameError|UnboundLocalError): ")
SECONDS = 20.0  # that trying lines may take, before it is given up
TOGETHER = re.compile(r"\. After that: |, together with ")
# Code in a sentence: a call, an index, an assignment, a product.
CODE = re.compile(r"\w\(|\w\[|=| @ | [*/] |\.mT|\bcos\b.*\bsin\b")
AXES = re.compile(r"\([BHTSG…][,)]|\([\w…]+, [^)]*\)")  # (B, T, d_model)
WORD = re.compile(r"[A-Za-z]{3,}")


class HintPlace(NamedTuple):
    """Lines of the learner's that are wrong, and whether writing the right ones makes the task right.

    There are several where none of them alone makes the verdict better.
    """

    differences: tuple[LineDifference, ...]
    is_all: bool


def add_hints(outcome: Outcome, task: Task, module: ModuleType, lesson: Lesson, are_tried: bool) -> Outcome:
    """Return an outcome that says how to fix what is wrong.

    A hint that the judge has for this very mistake comes first, then the line that was found by running the
    learner's code beside the solution, then the fix of a mistake that has a name. `are_tried` is whether
    hints are to be told: trying lines takes the time of judging them.
    """
    if outcome.status != "wrong":
        return replace(outcome, hints=tuple(filter(None, (outcome.hint, outcome.more))))
    if not task.trials:  # a number to predict: whether it is more or less is told before how to find it
        return replace(outcome, hints=tuple(filter(None, (outcome.more, outcome.hint))))
    # Here, since it imports PyTorch, and the command that starts the worker needs none.
    from regard.learn.hints.first_difference import find_differences

    chains = _in_trials(find_differences, task, module, lesson, task.is_quick or are_tried)
    if task.is_quick:  # of several mistakes one trial may show the second, and a later trial the first
        chains.sort(key=lambda differences: differences[0].line)
    differences = chains[0] if chains else []
    # All that is wrong may have been recognised together: both signs of a turn turn it the other way round.
    is_known = outcome.hint not in {"", *GENERAL, *task.summaries} and not ERROR.search(outcome.message)
    if differences and task.is_quick and not outcome.mistake and not is_known:
        outcome = _with_name(outcome, task, module, lesson, differences[0])
    place = _find_place(outcome, task, module, lesson, chains, are_tried)
    hint = _hint_with_line(outcome, task, place) if place else _hint_without_line(outcome, differences)
    hints = _steps(outcome, task, lesson, place, hint)
    # What the judge has found together is two things, in whichever lesson.
    more = " At least two things differ." if TOGETHER.search(outcome.message) else ""
    message = f"{outcome.message.removesuffix('.')}.{more}" if more else outcome.message
    return replace(outcome, message=message, hint=hint, hints=hints)


def _find_place(
    outcome: Outcome,
    task: Task,
    module: ModuleType,
    lesson: Lesson,
    chains: list[list[LineDifference]],
    are_tried: bool,
) -> HintPlace | None:
    """The line to name in a hint; None if none helps."""
    with_lines = [chain for chain in chains if all(difference.right for difference in chain)]
    # What takes minutes to judge is not judged again.
    if not are_tried or task.reports_progress:
        return HintPlace((with_lines[0][0],), True) if with_lines else None
    from regard.learn.hints.own_names import find_missing_steps, find_superfluous
    from regard.learn.hints.tried_lines import find_helping

    end = time.monotonic() + SECONDS
    if with_lines:
        found = find_helping(task, module, outcome, with_lines, end)
        return HintPlace(*found) if found else None
    # A line of the learner's own, with names of its own, may still be found by what it holds.
    steps = _in_trials(find_missing_steps, task, module, lesson)
    if found := find_helping(task, module, outcome, steps, end):
        return HintPlace(*found)
    superfluous = find_superfluous(task.name, module, plain_solution(lesson.solution))
    found = find_helping(task, module, outcome, [[line] for line in superfluous], end)
    # A line that is left out may only hide what is wrong, unless nothing is wrong any more.
    return HintPlace(*found) if found and found[1] else None


def _hint_without_line(outcome: Outcome, differences: list[LineDifference]) -> str:
    """The whole hint where no line is to be named."""
    known = find_mistake(outcome.mistake)
    hint = outcome.hint or (known.fix if known else "")
    # What is only said of a line, without another one for it, was not tried.
    told = next((difference for difference in differences if not difference.right), None)
    if told is not None and (not hint or hint in GENERAL):
        hint = f"{hint and f'{hint}; '}line {told.line}: {told.said}"
    return hint


def _hint_with_line(outcome: Outcome, task: Task, place: HintPlace) -> str:
    """The whole hint: a reason, and the line to write."""
    difference = place.differences[0]
    write = "; and ".join(_write(each) for each in place.differences)
    if difference.is_loop:
        write = f"in place of the loop at {write}"
    # The line that raised an error may not be the one to blame, and a hint for it would mislead.
    elsewhere = not difference.raised and outcome.hint not in task.error_hints
    misleads = outcome.hint in GENERAL | task.summaries or (elsewhere and ERROR.search(outcome.message))
    reason = "" if misleads or outcome.hint in difference.right else outcome.hint
    if not outcome.mistake or difference.after:
        reason = reason or difference.said
    return f"{reason.rstrip('.')}; {write}" if reason else write


def _steps(
    outcome: Outcome, task: Task, lesson: Lesson, place: HintPlace | None, hint: str
) -> tuple[str, ...]:
    """The hints in their order: what to look at, the place and the reason, and the whole."""
    reason = "" if outcome.hint in GENERAL | task.summaries else _words_of(outcome.hint)
    if place is None:
        steps = [_look(outcome, task, lesson), reason, hint]
    else:
        difference = place.differences[0]
        mark = marks_of(lesson.solution).get(difference.step or difference.right, "")
        # Where the numbers look right, as those of dropout do, the lesson's own words say more.
        is_one = len(place.differences) == 1
        is_unseen = is_one and difference.said.endswith(GENERAL_DIFFERENCE)
        unseen = _row_of(outcome, lesson) if is_unseen else ""
        # At the line that makes it right the mistake is what it is called, and no question any more.
        exact = unseen if place.is_all and not reason else ""
        steps = [
            _asked(unseen) or _ask(difference, mark),
            _say_where(outcome, place, reason or exact, mark),
            hint,
        ]
    if outcome.hint in GENERAL or (ERROR.search(outcome.message) and reason):
        steps[0] = reason or outcome.hint
    return tuple(dict.fromkeys(step for step in (*steps, outcome.more) if step))


def _say_where(outcome: Outcome, place: HintPlace, reason: str, mark: str) -> str:
    """The second hint: the place and the reason, without the line to write."""
    difference = place.differences[0]
    where = f"{'the loop at ' if difference.is_loop else ''}{_where(difference)}"
    name = "" if difference.name.endswith("()") or difference.name == "return" else f"`{difference.name}`"
    # What is seen in the numbers, then why; "is the first value that differs" says nothing beside a reason.
    seen = "" if reason and difference.said.endswith(GENERAL_DIFFERENCE) else difference.said
    # The judge may have seen more exactly what is wrong, and the place alone would say less than it.
    if seen.endswith(GENERAL_DIFFERENCE) and not outcome.mistake and not ERROR.search(outcome.message):
        exact = outcome.message.rpartition(": ")[2]
        seen = "; ".join(filter(None, (exact, mark and f"it should be: {mark}")))
    said = "; ".join(filter(None, (seen, reason))) or (mark and f"it should be: {mark}")
    if name and not said.startswith(name):
        where = f"{where}, {name}"
    more = "" if place.is_all and len(place.differences) == 1 else "at least two things differ; one of them: "
    return f"{more}{where}{said and f': {said}'}"


def _write(difference: LineDifference) -> str:
    """What to do with a line."""
    if difference.right == "pass":
        return f"leave out {_where(difference)}"
    return f"{_where(difference)}: {difference.right}"


def _where(difference: LineDifference) -> str:
    return f"{'after ' if difference.after else ''}line {difference.line}"


def _ask(difference: LineDifference, mark: str) -> str:
    """The first hint where a line is known: what to look at, in the learner's names."""
    if mark and (difference.after or difference.name.endswith("()")):
        return f"which of your lines does this: {mark}?"
    name = "what your code returns" if difference.name == "return" else f"`{difference.name}`"
    if AXES.search(mark):
        return f"print {name} for a few tokens. The exercise says of it: {mark}. Is it so?"
    if mark:
        return f"look at {name}. The exercise says of it: {mark}. Is it so?"
    return f"look at {name}: is it what it should be? Print it for a few tokens"


def _look(outcome: Outcome, task: Task, lesson: Lesson) -> str:
    """The first hint where no line is known."""
    if row := _row_of(outcome, lesson):
        return _asked(row)
    # The numbers in a lesson are those of its first task.
    if lesson.solution.find(f" {task.name}") > lesson.solution.find("\n\n\ndef ") > 0:
        return f"read what the exercise says of each line of `{task.name}`: which of yours does not do that?"
    return (
        f"run `{task.name}` on the numbers of 'By hand' in the lesson, and print what each of your lines "
        "gives: which is the first that is not there?"
    )


def _row_of(outcome: Outcome, lesson: Lesson) -> str:
    """What the lesson's table of usual mistakes says of a mistake, if it says so without code; else ""."""
    usual = next((mistake for mistake in usual_mistakes(lesson) if mistake.name == outcome.mistake), None)
    # Another task makes the same mistake by other lines than those of which the table speaks.
    if usual is None or usual.task not in ("", outcome.task):
        return ""
    row = lesson.says_of(usual.name)
    return "" if CODE.search(row) else row


def _asked(row: str) -> str:
    """A row as a question: a mistake is known by its numbers, which other lines may give, too."""
    return row and f"{row}. Is it so in your code?"


def _words_of(hint: str) -> str:
    """The part of a hint that says something in words, without the code to write."""
    parts = re.split(r"; |: ", hint)
    words = [part for part in parts if WORD.search(part) and not CODE.search(part)]
    return "; ".join(words)


def _line_of(module: ModuleType, number: int) -> str:
    """A line of the learner's file, without its comment."""
    program = Path(str(module.__file__)).read_text(encoding="utf-8")
    return program.splitlines()[number - 1].split("  #")[0].strip()


def _in_trials(
    find: Callable[..., list[LineDifference]],
    task: Task,
    module: ModuleType,
    lesson: Lesson,
    in_every: bool = True,
) -> list[list[LineDifference]]:
    """What is found by running the learner's code beside the solution, in each trial where it can be told."""
    found = []
    for trial in task.trials:
        # The learner's code may do anything, and an answer without this hint is better than none.
        with contextlib.suppress(Exception):
            if lines := find(task.name, trial, module, plain_solution(lesson.solution)):
                found.append(lines)
                if not in_every:
                    break
    return found


def _with_name(
    outcome: Outcome, task: Task, module: ModuleType, lesson: Lesson, difference: LineDifference
) -> Outcome:
    """Return an outcome with the name of its first mistake, which a second one hides.

    The first wrong line is put into the solution, where it is the only mistake, and judged there.
    """
    solution = plain_solution(lesson.solution)
    if difference.after or difference.raised or solution.count(difference.right) != 1:
        return outcome
    own = _line_of(module, difference.line)
    alone = ModuleType("alone")
    alone.__file__ = module.__file__
    # Both are the learner's lines, and what they raise has been said already.
    with contextlib.suppress(Exception):
        exec(solution.replace(difference.right, own), vars(alone))
        first = task.outcome(getattr(alone, task.name), alone)
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
