"""Lesson 1: softmax(X Xᵀ) X, on one text and on a batch, and a weight to predict."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.verdicts import example_picture
from regard.learn.lesson import Outcome, Task
from regard.stages.example import X

GUESS = "weight_of_model_if_doubled"
FUNCTION = FunctionTask(
    "similarity",
    "simplified_self_attention",
    lambda: (
        Case("on one text", (draw(7, 3, seed=0),)),
        Case("on a batch of two texts", (draw(2, 5, 4, seed=1),)),
    ),
)


def judge_function(function: Any, module: ModuleType) -> Outcome:
    """Judge the learner's function, and show its weights on the running example."""
    outcome = FUNCTION.judge(function, module)
    if outcome.status != "done":
        return outcome
    return replace(outcome, picture=example_picture(["your weights"], [function(X)[1]]))


def judge_prediction(guess: Any, module: ModuleType) -> Outcome:
    """Compare the guess with the weight; any guess will do, since the lesson is in the comparison."""
    if isinstance(guess, int | float) and not 0 <= guess <= 1:
        said = f"a weight lies between 0 and 1; you guessed {guess:g}"
        return Outcome(GUESS, "wrong", said, hint="guess a number from 0 to 1")
    return PREDICTION.judge(guess, module)


PREDICTION = guess_task("similarity", GUESS)
TASKS = (replace(FUNCTION.task(), judge=judge_function), Task(GUESS, judge_prediction))
