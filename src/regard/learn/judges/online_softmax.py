"""Lesson 15: attention a block of keys at a time, and the merge of two parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.made_tensors import all_pairs, tensors_made


def flash_cases() -> tuple[Case, ...]:
    """Return one block and several, large scores first and last, and scores far below 0."""
    q, k, v = draw(2, 5, 4, seed=0), draw(2, 8, 4, seed=1), draw(2, 8, 3, seed=2)
    loud = 70 * k[:, :2]  # keys with scores of 100 and more
    # Of whole numbers, whose products are exact: in any order of its sums a right answer stays right.
    low = ((q + 20).round(), (k - 5).round())
    return (
        Case(
            "with all keys in one block",
            (q, k, v, 8),
            "With one block nothing has to shrink: look at the scores, the exponentials and the division.",
        ),
        Case(
            "with blocks of 3, 3 and 2 keys",
            (q, k, v, 3),
            "With one block it is right: look at what happens to the sums so far, and at the last block.",
        ),
        Case("with scores of 100 in the first block", (q, torch.cat([loud, k[:, 2:]], dim=1), v, 2)),
        Case("with scores of 100 in the last block", (q, torch.cat([k[:, 2:], loud], dim=1), v, 2)),
        Case("with scores of about -200", (*low, v, 3)),
    )


def merge_cases() -> tuple[Case, ...]:
    """Return two parts of 8 keys, and the same with large scores."""
    q, k, v = draw(2, 5, 4, seed=0), draw(2, 8, 4, seed=1), draw(2, 8, 3, seed=2)
    flash = FLASH.right
    out_a, lse_a = flash(q, k[:, :3], v[:, :3], 3)
    out_b, lse_b = flash(q, k[:, 3:], v[:, 3:], 5)
    return (
        Case("with 3 and 5 keys", (out_a, lse_a, out_b, lse_b)),
        Case(
            "with log-sum-exps of about 100",
            (out_a, lse_a + 100, out_b, lse_b + 101),
            "exp(100) is more than float32 holds: subtract `lse` first, then take the exponential.",
        ),
    )


def whole_matrix(flash_attention: Callable[..., Any]) -> str:
    """Say that all scores are there at once, if they are; "" if one block is there at a time."""
    T, S = 5, 16
    made = tensors_made(flash_attention, draw(T, 4, seed=0), draw(S, 4, seed=1), draw(S, 3, seed=2), 3)
    if pairs := all_pairs(made, T, S):
        return (
            f"the numbers are right, and they are made from all scores at once: {pairs} for {T} queries and "
            f"{S} keys, in blocks of 3. Now do it as the lesson does, with one block at a time"
        )
    return ""


FLASH = FunctionTask("online_softmax", "flash_attention", flash_cases, shortcut=whole_matrix)
MERGE = FunctionTask("online_softmax", "merge", merge_cases)
TASKS = (FLASH.task(), MERGE.task(), guess_task("online_softmax", "megabytes_of_scores"))
