"""Lesson 3: the standard deviation of a score, and softmax(Q Kᵀ / √d) V."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from regard.learn.judges import projections
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.self_attention import TRIAL, judge_self_attention
from regard.learn.lesson import Outcome, Task

NAME = "SelfAttention"
DONE = "softmax(Q Kᵀ / √d) V: the attention of Vaswani et al. (2017), as sharp at one width as at another."


def judge_class(cls: Any, module: ModuleType) -> Outcome:
    """Judge the learner's class with the scale 1/√head_dim."""
    return judge_self_attention(NAME, cls, projections.scaled, DONE, lesson="scale")


TASKS = (
    guess_task("scale", "std_of_scores"),
    Task(NAME, judge_class, trials=(TRIAL,)),
)
