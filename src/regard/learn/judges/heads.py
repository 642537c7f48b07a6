"""Lesson 6: several heads in one module, of which one projection holds all."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from regard.learn.judges.example_heads import seeking_keys, seeking_queries
from regard.learn.judges.first_run import OutputShape, first_run
from regard.learn.judges.verdicts import check_attention, example_picture, judge_guess, set_example_weights
from regard.learn.lesson import Outcome, Task, UsualMistake, WeightPicture
from regard.stages.example import WV, X

NAME = "MultiHeadAttention"
INIT: dict[str, Any] = {"d_model": 24, "d_out": 20, "num_heads": 4, "dropout": 0.1}
HINTS = {
    "heads-split-by-view": "t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)",
    "heads-merged-by-view": "heads.transpose(1, 2).reshape(B, T, H * head_dim)",
    "scale-from-model-width": "math.sqrt(self.head_dim): a dot product of one head has head_dim terms",
}


def judge_module(thing: Any, module: ModuleType) -> Outcome:
    """Run the module once, then check it."""
    out, weights = OutputShape((2, 6, 20), "(B, T, d_out)"), OutputShape((2, 4, 6, 6), "(B, H, T, T)")
    problem = first_run(NAME, thing, module, INIT, (torch.randn(2, 6, 24),), out, weights)
    if problem is not None:
        return problem
    done = "as many maps as heads, from three products and one softmax."
    for d_out in (24, 20):  # a mistake of the scale has its name where d_out is d_model
        init = {**INIT, "d_out": d_out}
        outcome = check_attention(NAME, thing, done, hints=HINTS, init=init, causal=True, heads=4)
        if outcome.status != "done":
            return outcome
    return replace(outcome, picture=_picture(thing))


def _picture(thing: Any) -> WeightPicture:
    """The weights of the learner's module on the running example: two heads that look for opposite tokens."""
    layer = thing(3, 4, 2, 0.0).eval()
    keys = torch.cat([seeking_keys(0, 1), seeking_keys(1, 0)], dim=1)  # (3, 4): two heads side by side
    set_example_weights(layer, W_q=seeking_queries().repeat(1, 2), W_k=keys, W_v=WV.repeat(1, 2))
    with torch.no_grad():
        weights = layer(X[None])[1][0]  # (H, T, T)
    return example_picture(["your head 1", "your head 2"], list(weights))


def judge_prediction(guess: Any, module: ModuleType) -> Outcome:
    """Compare the predicted number of parameters with that of three projections, whatever the heads."""
    said = "the number of parameters, with 8 heads as with 1,"
    return judge_guess("parameters_of_eight_heads", guess, 3 * 64 * 64, within=0.0, said=said)


TASKS = (Task(NAME, judge_module), Task("parameters_of_eight_heads", judge_prediction))
USUAL_MISTAKES = (
    UsualMistake(
        "heads-split-by-view",
        "t = t.view(B, T, self.num_heads, self.head_dim)",
        "return t.view(B, self.num_heads, T, self.head_dim)",
    ),
    UsualMistake("heads-merged-by-view", "tokens = heads.transpose(1, 2)", "tokens = heads"),
    UsualMistake(
        "scale-from-model-width", "math.sqrt(self.head_dim)", "math.sqrt(self.num_heads * self.head_dim)"
    ),
)
