"""The parts of the course: lessons, the tasks in them, and the outcome of judging one.

This file is data. `judges` know how a task is judged, `course` lists the lessons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from regard.learn.exercise import with_commands, with_stages

FOLDER = Path(__file__).parent / "lessons"
# The third line of a lesson: "*25 minutes · difficulty 2 of 3 · after lessons 4, 9 and 11*".
PLAN = re.compile(r"^\*(\d+) minutes · difficulty ([123]) of 3(?: · after lessons? (.+))?\*$", re.MULTILINE)


class LessonPlan(NamedTuple):
    """What a teacher plans with: minutes (an estimate), difficulty from 1 to 3, and the lessons before."""

    minutes: int
    difficulty: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Lesson:
    """A lesson: its text, its solution and its picture are files of `folder`."""

    number: int
    noun: str  # of its folder and of its judge
    title: str
    idea: str  # in one sentence
    goal: str = ""  # what the learner's file has to do, as an infinitive; empty if there is nothing to write
    timeout: float = 30.0  # seconds that judging may take
    themes: Sequence[str] = ()  # of the catalogue's mistakes that are known after it
    command: str = ""  # what to run beside the text, where there is nothing to write
    question: str = ""  # about what the command shows
    answers: tuple[tuple[str, str], ...] = ()  # each with what is said to it; the first is right

    @property
    def folder(self) -> Path:
        """Where the text, the solution and the picture are."""
        return FOLDER / f"{self.number:02}_{self.noun}"

    @property
    def text(self) -> str:
        """The lesson in Markdown."""
        return (self.folder / "lesson.md").read_text(encoding="utf-8")

    @property
    def solution(self) -> str:
        """The program that solves it, with the learner's lines marked (see `exercise`)."""
        solution = (self.folder / "solution.py").read_text(encoding="utf-8")
        return with_stages(with_commands(solution, self.number))

    @property
    def has_code(self) -> bool:
        """Whether there is something to write."""
        return bool(self.goal)

    @property
    def file(self) -> str:
        """The name of the learner's file."""
        return f"lesson{self.number}.py"

    def says_of(self, mistake: str) -> str:
        """Return what the table of usual mistakes in the text says of one; "" if it is not there."""
        row = re.search(rf"^\| `{re.escape(mistake)}` \| (.*) \|$", self.text, flags=re.MULTILINE)
        return row[1].replace("\\|", "|") if row else ""  # a table writes \| for a bar that ends no column

    @property
    def plan(self) -> LessonPlan:
        """The time that it takes, how difficult it is, and the lessons to do before, as its text says."""
        found = PLAN.search(self.text)
        if found is None:
            raise ValueError(
                f"lesson {self.number}: its text has no line as *25 minutes · difficulty 2 of 3*"
            )
        return LessonPlan(int(found[1]), int(found[2]), tuple(map(int, re.findall(r"\d+", found[3] or ""))))


@dataclass(frozen=True)
class WeightPicture:
    """Attention weights with their labels, to be drawn: one matrix for each of `titles`."""

    titles: list[str]
    rows: list[str]
    cols: list[str]
    weights: list[list[list[float]]]


@dataclass(frozen=True)
class Outcome:
    """What came of judging one task.

    The status is "done", "wrong", "unfinished" if lines are still to be written, or "guessed" for a guess
    that was far off, which is no mistake. `message` says what is
    wrong and what it does, `hint` how to fix it.
    """

    task: str
    status: str
    message: str
    mistake: str = ""  # its name in the catalogue or in `mistakes`, if it is a known one
    hint: str = ""
    more: str = ""  # what is told after `hint`, if that is not all
    hints: tuple[str, ...] = ()
    picture: WeightPicture | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """Return the outcome that `to_dict` made into data."""
        picture = data["picture"] and WeightPicture(**data["picture"])
        return cls(**{**data, "picture": picture, "hints": tuple(data["hints"])})


class NotDoneError(Exception):
    """Why a task is not done: a judge raises it where it sees so, with what an `Outcome` says."""

    def __init__(self, message: str, mistake: str = "", hint: str = "", status: str = "wrong") -> None:
        super().__init__(message)
        self.message, self.mistake, self.hint, self.status = message, mistake, hint, status

    @classmethod
    def of(cls, outcome: Outcome) -> NotDoneError:
        """Return what raises an outcome that is not done."""
        return cls(outcome.message, outcome.mistake, outcome.hint, outcome.status)

    def outcome(self, task: str) -> Outcome:
        """Return it as the outcome of a task."""
        return Outcome(task, self.status, self.message, self.mistake, self.hint)


@dataclass(frozen=True)
class Trial:
    """How a task is run beside the solution, to find where the two part (see `first_difference`).

    `inputs` are the arguments of the function, or of the forward pass of the module that `init` makes; a
    function returns those that take long to make. `then` is called with the result and the inputs: what it
    returns is compared in place of the result, where a function has an effect on its inputs.
    """

    inputs: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    init: dict[str, Any] | None = None  # None: it is a function
    then: Callable[..., Any] = lambda result, *inputs: None
    training: bool = False  # whether the module is in training mode, with dropout


@dataclass(frozen=True)
class Task:
    """A thing that the learner writes: a function, a class or a value of the name `name`.

    `judge` gets the thing and the module that it is in, and returns its outcome or raises `NotDoneError`; one
    that takes long (`reports_progress`) gets a function too, which it calls with a sentence on what it is
    doing. With `trials`, a hint tells the first line that differs from the solution's in one of them.

    `summaries` are hints of the judge that name every line of the task: they are given only where the line
    to write cannot be told. `error_hints` are those for errors that are true in whichever line the mistake
    is. `is_quick` is whether judging takes no time, so that the first wrong line of
    several can be judged alone.
    """

    name: str
    judge: Callable[..., Outcome]
    reports_progress: bool = False
    trials: tuple[Trial, ...] = ()
    summaries: frozenset[str] = frozenset()
    error_hints: frozenset[str] = frozenset()
    is_quick: bool = False

    def outcome(self, thing: Any, module: ModuleType, *tell: Callable[[str], None]) -> Outcome:
        """Return what comes of judging a thing of a learner's file."""
        try:
            return self.judge(thing, module, *tell)
        except NotDoneError as problem:
            return problem.outcome(self.name)


@dataclass(frozen=True)
class UsualMistake:
    """A mistake that learners make in a lesson: what to replace in the solution to make it.

    `name` is its name in the catalogue or in `mistakes`; `wrong` replaces `right`, which occurs once in the
    solution. `task` is what it is usual in, where the lesson has the same mistake in other tasks, too.
    """

    name: str
    right: str
    wrong: str
    task: str = ""
