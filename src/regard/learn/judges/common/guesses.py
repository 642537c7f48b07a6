"""Tasks whose answer is a number that the learner predicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from regard.learn.lesson import Outcome, Task
from regard.learn.wrong_ways import judge_table, read_pairs, sentence

NEAR = 0.1  # relative error of a guess that counts as near


def guess_task(noun: str, name: str, compute: Callable[[ModuleType], float] | None = None) -> Task:
    """Return the task of a lesson to predict a number.

    The lesson's file `judge.toml` has its table: what the number is, as the subject of a sentence (`said`);
    the largest relative error that counts as right (`within`), where any guess counts if it says nothing,
    since the lesson is in the comparison, and a guess that is `near` is marked as right; wrong numbers, each
    with the question that it is the answer to (`answers`); and how to find the number (`hint`), else whether
    it is more or less. It is `exact`, or what `compute` makes of the learner's file; as long as that fails,
    `waiting` is said.
    """
    table = judge_table(noun)[name]
    said, hint = sentence(table["said"]), sentence(table.get("hint", ""))
    within, near = table.get("within", math.inf), table.get("near", NEAR)

    def judge(guess: Any, module: ModuleType) -> Outcome:
        try:
            number = compute(module) if compute else table["exact"]
        # The learner's own file computes the number, and may not run yet.
        except Exception:
            if "waiting" not in table:
                raise
            return Outcome(name, "unfinished", table["waiting"])
        if isinstance(guess, int | float | Tensor):
            side = f"it is {'more' if number > float(guess) else 'less'} than that"
            more = side if hint else ""
            for answer, reason in read_pairs(noun, name, "answers"):
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
