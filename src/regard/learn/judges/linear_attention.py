"""Lesson 16: linear attention as a state that grows no larger, and the delta rule that corrects it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import normalize

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.made_tensors import all_pairs, tensors_made

PRODUCTS = ("aten::mv", "aten::mm", "aten::bmm")


def linear_cases() -> tuple[Case, ...]:
    """Return several tokens, and one."""
    q, k, v = draw(6, 4, seed=0), draw(6, 4, seed=1), draw(6, 3, seed=2)
    return Case("for six tokens", (q, k, v)), Case("for one token", (q[:1], k[:1], v[:1]))


def delta_cases() -> tuple[Case, ...]:
    """Return tokens that replace a part of what was there, and a key that comes again."""
    q, k, v = draw(6, 4, seed=0), normalize(draw(6, 4, seed=1), dim=-1), draw(6, 3, seed=2)
    beta = torch.tensor([0.7, 0.5, 0.8, 1.0, 0.3, 0.9])
    return (
        Case("with beta between 0 and 1", (q, k, v, beta)),
        Case("with the same key twice and beta 1", (q[:2], k[[0, 0]], v[:2], torch.ones(2))),
    )


LONG = 13  # tokens, more than a state has rows or columns


def all_scores(with_beta: bool, function: Callable[..., Any]) -> str:
    """Say that a query is compared with every key, if it is; "" if there is a state instead."""
    beta = [torch.full((LONG,), 0.5)] if with_beta else []
    k = normalize(draw(LONG, 4, seed=1), dim=-1)
    made = tensors_made(function, draw(LONG, 4, seed=0), k, draw(LONG, 3, seed=2), *beta)
    pairs = all_pairs(made, LONG, LONG)
    for tensor in made:
        # A row of scores at a time, q[t] @ k[: t + 1].mT, ends with one number for each token.
        if not pairs and tensor.operation in PRODUCTS and tensor.shape[-1:] == (LONG,):
            pairs = f"a row {tensor.shape}"
    if not pairs:
        return ""
    return (
        f"the numbers are right, and every query is compared with every key: {pairs} for {LONG} tokens. Now "
        "do it as the lesson does, with a state of D × E numbers that grows no larger"
    )


LINEAR = FunctionTask(
    "linear_attention", "linear_attention", linear_cases, shortcut=partial(all_scores, False)
)
DELTA = FunctionTask("linear_attention", "delta_rule", delta_cases, shortcut=partial(all_scores, True))
TASKS = (
    LINEAR.task(),
    DELTA.task(),
    guess_task("linear_attention", "tokens_until_the_cache_is_as_large"),
)
