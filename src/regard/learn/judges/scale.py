"""Lesson 3: the standard deviation of a score, and softmax(Q Kᵀ / √d) V."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from regard.learn.judges import projections
from regard.learn.judges.self_attention import TRIAL, judge_self_attention
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.lesson import Outcome, Task, UsualMistake

NAME, WIDTH = "SelfAttention", 64
DONE = "softmax(Q Kᵀ / √d) V: the attention of Vaswani et al. (2017), as sharp at one width as at another."
SAID = f"the standard deviation of a sum of {WIDTH} such products"
REASONS = {  # what a wrong prediction is the right answer to
    float(
        WIDTH
    ): f"{WIDTH} is the variance, since variances add up; the standard deviation is its square root",
    1.0: f"1 is the standard deviation of one product; this is a sum of {WIDTH}",
    1
    / math.sqrt(WIDTH): "that is what to multiply the scores by, so that their standard deviation becomes 1",
}
EFFECTS = projections.EFFECTS | {
    "scale-from-model-width": "You divide by √d_model. q and k have the width head_dim, so the scores get "
    "too small and the weights too even.",
}
HINTS = {"scale-from-model-width": "math.sqrt(k.shape[-1]): the width of a key, not of a token"}
SCORES = "q @ k.mT / math.sqrt(k.shape[-1])"


def judge_class(cls: Any, module: ModuleType) -> Outcome:
    """Judge the learner's class with the scale 1/√head_dim."""
    return judge_self_attention(NAME, cls, module, projections.scaled, DONE, effects=EFFECTS, hints=HINTS)


TASKS = (
    guess_task(
        "std_of_scores",
        math.sqrt(WIDTH),
        SAID,
        within=0.1,
        answers_to=REASONS,
        hint="each product has the variance 1, and variances add up; their root is the standard deviation",
    ),
    Task(NAME, judge_class, trials=(TRIAL,)),
)
USUAL_MISTAKES = (
    UsualMistake("no-scale", SCORES, "q @ k.mT"),
    UsualMistake("scaled-by-width", SCORES, "q @ k.mT / k.shape[-1]"),
    UsualMistake("scale-from-model-width", SCORES, "q @ k.mT / math.sqrt(x.shape[-1])"),
    UsualMistake("scale-multiplied", SCORES, "q @ k.mT * math.sqrt(k.shape[-1])"),
)
