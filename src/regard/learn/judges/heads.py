"""Lesson 6: several heads in one module, of which one projection holds all."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from regard.learn.judges.common.first_run import OutputShape, first_run
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.verdicts import (
    attend,
    check_attention,
    drops_weights,
    example_picture,
    named_mistake,
    seeking_keys,
    seeking_queries,
)
from regard.learn.judges.own_projections import MERGED, ONE_MAP_EACH, check_output
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.stages.example import WV, X, with_weights

NAME = "MultiHeadAttention"
INIT: dict[str, Any] = {"d_model": 24, "d_out": 20, "num_heads": 4, "dropout": 0.1}


def judge_module(thing: Any, module: ModuleType) -> Outcome:
    """Run the module once, then check it."""
    out = OutputShape((2, 6, 20), "(B, T, d_out)", MERGED)
    weights = OutputShape((2, 4, 6, 6), "(B, H, T, T)", ONE_MAP_EACH)
    x = torch.randn(2, 6, 24)
    _check_parts(thing)
    first_run(NAME, thing, INIT, (x,), out, weights)
    done = "as many maps as heads, from three products and one softmax."
    for d_out in (24, 20):  # a mistake of the scale has its name where d_out is d_model
        init = {**INIT, "d_out": d_out}
        outcome = check_attention(NAME, thing, done, lesson="heads", init=init, causal=True, heads=4)
        if outcome.status != "done":
            break
    check_output(thing(**INIT), x, 4, "the concatenated heads", outcome)
    if not drops_weights(thing, INIT, x):
        raise named_mistake("dropout-on-values")
    return replace(outcome, picture=_picture(thing))


def _check_parts(thing: Any) -> None:
    """Raise what is wrong with `split` or `merge`, if they run."""
    joined = torch.arange(2 * 6 * 20).view(2, 6, 20)  # (B, T, d_out), every number another
    heads = joined.view(2, 6, 4, 5).transpose(1, 2)  # (B, H, T, head_dim)
    named = {  # by the checker
        "split": (joined.view(2, 4, 6, 5),),
        "merge": (heads.reshape(2, 6, 20), heads.permute(0, 2, 3, 1).reshape(2, 6, 20)),
    }
    right = {"split": (joined, heads, "(B, H, T, head_dim)"), "merge": (heads, joined, "(B, T, d_out)")}
    for part, (given, expected, axes) in right.items():
        try:
            answer = getattr(thing(**INIT), part)(given)
        except Exception:
            return  # any error of the learner's; the whole module is run next, and the error explained
        if not isinstance(answer, Tensor) or answer.shape != expected.shape:
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            said = f"`{part}` gives {got} for {tuple(given.shape)}; expected {tuple(expected.shape)}, {axes}"
            raise NotDoneError(said)
        if not any(answer.equal(known) for known in (expected, *named[part])):
            said = f"`{part}` has the right shape and other numbers: head 1 is the first 5 channels"
            raise NotDoneError(said)


def _picture(thing: Any) -> WeightPicture:
    """The weights of the learner's module on the running example: two heads that look for opposite tokens."""
    layer = thing(3, 4, 2, 0.0).eval()
    keys = torch.cat([seeking_keys(0, 1), seeking_keys(1, 0)], dim=1)  # (3, 4): two heads side by side
    with_weights(layer, W_q=seeking_queries().repeat(1, 2), W_k=keys, W_v=WV.repeat(1, 2))
    with torch.no_grad():
        weights = attend(layer, X[None])[1][0]  # (H, T, T)
    return example_picture(["your head 1", "your head 2"], list(weights))


TASKS = (
    Task(NAME, judge_module, trials=(Trial((draw(2, 6, 24),), INIT),)),
    guess_task("heads", "parameters_of_eight_heads"),
)
