"""Lesson 13: the bytes of a cache, query heads that share keys and values, and heads pooled into fewer."""

from __future__ import annotations

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw

NEW_TOKENS = "visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)"


def grouped_cases() -> tuple[Case, ...]:
    """Return groups of three and two, with new tokens after a cache, and one group for all."""
    q, k, v = draw(2, 6, 7, 4, seed=0), draw(2, 2, 7, 4, seed=1), draw(2, 2, 7, 4, seed=2)
    return (
        Case("with 6 query heads on 2", (q, k, v)),
        Case(
            "with 4 query heads on 2 and 3 new tokens",
            (draw(2, 4, 3, 4, seed=3), k, v),
            "The new tokens are the last of all, so the mask cannot begin at the first key.",
            NEW_TOKENS,
        ),
        Case("with 6 query heads on 1", (q, k[:, :1], v[:, :1])),
    )


CALCULATOR = FunctionTask(
    "grouped_heads",
    "cache_bytes",
    lambda: (
        Case("for 1,000 tokens of Llama 3.1 8B", (32, 8, 128, 1000, 2)),
        Case("for GPT-2 with 4 bytes for each number", (12, 12, 64, 1024, 4)),
    ),
)
GROUPED = FunctionTask(
    "grouped_heads",
    "grouped_attention",
    grouped_cases,
    attends=lambda function: function,
    options={"causal": True},
)
POOL = FunctionTask(
    "grouped_heads",
    "pool_heads",
    lambda: (
        Case("from 6 heads to 2", (draw(24, 5, seed=4), 6, 2)),
        Case("from 4 heads to 1", (draw(16, 5, seed=5), 4, 1)),
    ),
)
TASKS = (
    CALCULATOR.task(),
    GROUPED.task(),
    POOL.task(),
    guess_task("grouped_heads", "gigabytes_without_groups"),
)
