"""Lesson 2: softmax(Q Kᵀ) V, by the checker with a scale of 1, and a guess about direction."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.relations import is_equal
from regard.learn.judges.self_attention import TRIAL, check_form, example_weights, judge_self_attention
from regard.learn.lesson import Outcome, Task
from regard.stages.example import WK, WQ, X

NAME = "UnscaledSelfAttention"
DONE = "softmax(Q Kᵀ) V: every token now asks, offers and hands over by a projection of its own."
SCALED = (
    f"{DONE} You have divided by √head_dim already, which is lesson 3: it counts as right, and the next "
    "lesson says why it is there."
)
BIAS = "Your W_k has a bias: nothing is wrong with that, but it cancels in softmax (bias=False saves it)."


def unscaled(q: Tensor, k: Tensor) -> Tensor:
    """The weights softmax(Q Kᵀ)."""
    return torch.softmax(q @ k.mT, dim=-1)


def scaled(q: Tensor, k: Tensor) -> Tensor:
    """The weights softmax(Q Kᵀ / √d)."""
    return torch.softmax(q @ k.mT / k.shape[-1] ** 0.5, dim=-1)


def judge_class(cls: Any, module: ModuleType) -> Outcome:
    """Judge the learner's class without a scale; one that already has the right scale is right, too."""
    check_form(NAME, cls)
    if is_equal(example_weights(cls), scaled(X @ WQ, X @ WK)):
        return judge_self_attention(NAME, cls, scaled, SCALED)
    outcome = judge_self_attention(NAME, cls, unscaled, DONE, scale=1.0, lesson="projections")
    if outcome.mistake and is_about_scale(outcome.mistake):
        return replace(outcome, hint="scores = q @ k.mT: what to divide by is the subject of lesson 3")
    if outcome.status == "done" and cls(*WQ.shape).W_k.bias is not None:
        return replace(outcome, message=f"{outcome.message} {BIAS}")
    return outcome


def is_about_scale(mistake: str) -> bool:
    """Whether the catalogue has a mistake among those of the scale."""
    # Here, since a right file needs no catalogue, which takes time to import.
    from regard.checker.catalogue import THEMES

    return mistake in {each.name for each in THEMES["scale"]}


TASKS = (
    Task(NAME, judge_class, trials=(TRIAL,)),
    guess_task("projections", "score_of_each_on_many"),
)
