"""Lesson 17: bounds on the scores of blocks, attention to the best blocks, and what that loses."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw


def _tensors() -> tuple[Tensor, Tensor, Tensor]:
    return draw(3, 4, seed=0), draw(12, 4, seed=1), draw(12, 2, seed=2)


def bound_cases() -> tuple[Case, ...]:
    """Return blocks of several keys, and of one."""
    q, k, _ = _tensors()
    return (
        Case("with blocks of 3 keys", (q, k, 3)),
        Case("with blocks of one key, where the bound is the score", (q, k, 1)),
    )


def selection_cases() -> tuple[Case, ...]:
    """Return selections of some blocks, of one, and of all."""
    q, k, v = _tensors()
    return (
        Case("with 2 of 4 blocks", (q, k, v, 3, 2)),
        Case("with 1 of 6 blocks", (q, k, v, 2, 1)),
        Case("with all blocks", (q, k, v, 3, 4)),
    )


def share_cases() -> tuple[Case, ...]:
    """Return the log-sum-exps of a selection and of all keys, and the same with large scores."""
    q, k, v = _tensors()
    kept, lse = SELECTED.right(q, k, v, 3, 2)[1], torch.logsumexp(q @ k.mT / 2, dim=-1)
    return (
        Case("with 2 of 4 blocks", (kept, lse)),
        Case("with log-sum-exps of about 100", (kept + 100, lse + 100)),
    )


BOUNDS = FunctionTask("selection", "block_bounds", bound_cases)
SELECTED = FunctionTask("selection", "selected_attention", selection_cases, after=BOUNDS)
SHARE = FunctionTask("selection", "lost_weight", share_cases)
TASKS = (BOUNDS.task(), SELECTED.task(), SHARE.task(), guess_task("selection", "weight_that_is_lost"))
