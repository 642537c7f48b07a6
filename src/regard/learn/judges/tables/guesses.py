"""Tasks whose answer is a number that the learner predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from regard.learn.lesson import Outcome, Task

NEAR = 0.1  # relative error of a guess that counts as near
NOTHING: Mapping[float, str] = {}


def guess_task(
    name: str,
    exact: float | Callable[[ModuleType], float],
    said: str,
    within: float = math.inf,
    *,
    near: float = NEAR,
    answers_to: Mapping[float, str] = NOTHING,
    hint: str = "",
    waiting: str = "",
) -> Task:
    """Return the task to predict a number.

    Arguments:
        name: of the task.
        exact: the number, or a function that computes it from the learner's file.
        said: what the number is, as the subject of a sentence.
        within: the largest relative error that counts as right; by default any guess does, since the lesson
            is in the comparison.
        near: the largest relative error of a guess that is marked as right, where any guess will do.
        answers_to: wrong numbers, each with the question that it is the answer to.
        hint: how to find the number; whether it is more or less than the guess if empty, which else a second
            hint tells.
        waiting: what to say as long as the number cannot be computed from the learner's file.
    """

    def judge(guess: Any, module: ModuleType) -> Outcome:
        try:
            number = exact(module) if callable(exact) else exact
        # The learner's own file computes the number, and may not run yet.
        except Exception:
            if not waiting:
                raise
            return Outcome(name, "unfinished", waiting)
        if isinstance(guess, int | float | Tensor):
            side = f"it is {'more' if number > float(guess) else 'less'} than that"
            more = side if hint else ""
            for answer, reason in answers_to.items():
                if math.isclose(float(guess), answer, rel_tol=5e-3):
                    return Outcome(name, "wrong", reason, hint=hint or side, more=more)
        # True is an int to Python, and no guess.
        if isinstance(guess, bool) or not isinstance(guess, int | float | Tensor):
            how = ", without quotes" if isinstance(guess, str) else ""
            how = " with a point, as in 0.5, not with a comma" if isinstance(guess, tuple) else how
            wanted = f"expected a number{how}"
            return Outcome(name, "unfinished", f"{wanted}, got {guess!r}")
        # 1.5035 for 1.50349 is not another number, rounded to four digits as 1.504 and 1.503.
        told = _text(number if math.isclose(float(guess), number, rel_tol=1e-4) else float(guess))
        distance = abs(float(guess) - number)
        if distance <= within * abs(number):
            # Any guess will do where nothing is said about `within`; a far one is not marked as right.
            status = "done" if distance <= min(within, near) * abs(number) else "guessed"
            how = ", nearly right" if status == "done" and told != _text(number) else ""
            return Outcome(name, status, f"you guessed {told}{how}; {said} is {_text(number)}")
        off = f"more than {within:.0%} off" if within else "not right"
        message = f"{said} is not {told}: that is {off}"
        return Outcome(name, "wrong", message, hint=hint or side, more=more)

    return Task(name, judge)


def _text(x: float) -> str:
    """Return a number with four digits, or with separators from 1,000 on."""
    return f"{x:.4g}" if abs(x) < 1000 else f"{x:,.0f}"
