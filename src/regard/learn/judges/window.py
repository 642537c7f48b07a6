"""Lesson 14: a mask with a window and sinks, and a cache that evicts what the mask hides."""

from __future__ import annotations

from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw

MASK = FunctionTask(
    "window",
    "streaming_mask",
    lambda: (
        Case("for 8 tokens, window 3, no sinks", (8, 8, 3, 0)),
        Case("for 8 tokens, window 3, 2 sinks", (8, 8, 3, 2)),
        Case("for 3 new tokens after 6, window 4, 1 sink", (3, 9, 4, 1)),
    ),
)
EVICT = FunctionTask(
    "window",
    "evict",
    lambda: (
        Case("with 9 keys, window 4, 2 sinks", (draw(2, 3, 9, 4, seed=0), draw(2, 3, 9, 4, seed=1), 4, 2)),
        Case("with 5 keys, window 4, 2 sinks", (draw(2, 3, 5, 4, seed=2), draw(2, 3, 5, 4, seed=3), 4, 2)),
    ),
)
TASKS = (MASK.task(), EVICT.task(), guess_task("window", "tokens_back_after_3_layers"))
