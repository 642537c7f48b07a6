"""The course: every lesson in its order."""

from __future__ import annotations

from regard.learn.lesson import Lesson

LESSONS = (
    Lesson(0, "why", "Why attention", "a word means what its neighbours make it mean"),
    Lesson(
        1,
        "similarity",
        "Similarity: dot product and softmax",
        "the dot product says how alike two tokens are; softmax turns that into weights",
        "write softmax(XXᵀ)X",
    ),
    Lesson(
        2,
        "projections",
        "Queries, keys, values",
        "three projections give a token three roles",
        "write self-attention with three projections",
    ),
    Lesson(
        3,
        "scale",
        "The scale: why √d",
        "scores are divided by √d so that softmax stays soft",
        "predict the size of a score, then scale it",
    ),
    Lesson(
        4,
        "mask",
        "The causal mask: no peeking",
        "a mask hides the future before softmax",
        "mask the future, and find a leak",
    ),
    Lesson(
        5,
        "head",
        "A head: a module with dropout",
        "a module of its own width, with a buffer and dropout, verified",
        "write a head, and your own check of it",
    ),
    Lesson(
        6,
        "heads",
        "Several heads: multi-head attention",
        "several heads attend in several ways, computed by one product",
        "split into heads, attend, merge",
    ),
    Lesson(
        7,
        "output",
        "Output projection, cross-attention",
        "W_o mixes the heads; keys and values may come from another sequence",
        "add W_o, and attend to a second sequence",
    ),
    Lesson(
        8,
        "positions",
        "Positional encoding: RoPE and ALiBi",
        "attention is blind to order until positions are put in",
        "rotate queries and keys, and write the bias of ALiBi",
    ),
    Lesson(
        9,
        "cache",
        "The KV cache: compute keys once",
        "keys and values of earlier tokens need not be computed again",
        "decode with a cache, exact at every split",
    ),
    Lesson(
        10,
        "block",
        "The transformer block and the GPT",
        "attention, MLP, norms and residuals make a block; blocks make a GPT",
        "write the block, and train it below a loss",
        # Its judge trains a model for up to 600 steps, which takes minutes on a slow machine.
        timeout=600.0,
    ),
    Lesson(
        11,
        "trained_heads",
        "What trained heads do",
        "heads of a trained model do things that can be named, measured and tested",
        "name three heads of a trained model, and cut one",
        # Its judge scores and cuts heads of the included model, which takes many forward passes.
        timeout=180.0,
    ),
    Lesson(
        12,
        "transplant",
        "Your attention in a trained model",
        "your module with a trained model's weights gives its very map",
        "load the weights, and compare maps",
        timeout=180.0,
    ),
    Lesson(
        13,
        "grouped_heads",
        "Grouped heads: a smaller cache",
        "several query heads share the keys and values of one head",
        "compute the bytes of a cache, share keys among query heads, and pool heads",
    ),
    Lesson(
        14,
        "window",
        "Windows and sinks: streaming",
        "a query sees the latest keys and the first ones, which heads rest on",
        "write the mask of a window with sinks, and evict from a cache",
    ),
    Lesson(
        15,
        "online_softmax",
        "Online softmax: flash attention",
        "a running maximum and a running sum give softmax without the whole row",
        "write flash attention, and merge two parts of it",
    ),
    Lesson(
        16,
        "linear_attention",
        "Linear attention and the delta rule",
        "a matrix of fixed size is written with keys and read with queries",
        "write linear attention with a state, and correct it by the delta rule",
    ),
    Lesson(
        17,
        "selection",
        "Choosing keys: sparse attention",
        "a summary of each block says which keys are worth reading",
        "bound the scores of blocks, read the best ones, and say what is lost",
    ),
    Lesson(
        18,
        "tour",
        "A tour of the inspector",
        "four things to see in a trained model, each with its number",
        command="regard inspect",
        question="Which of the three kinds of lesson 11 is the head that the page opens on?",
        answers=(
            (
                "induction",
                "its short diagonals lie where a phrase is said again: it reads what came next then",
            ),
            (
                "previous-token",
                "such a head has one line, just below the main diagonal; this one has short ones",
            ),
            ("sink", "such a head has a dark first column and little else; look at the short diagonals"),
        ),
    ),
)


def get_lesson(number: int) -> Lesson:
    """Return the lesson of this number; ValueError if there is none."""
    for lesson in LESSONS:
        if lesson.number == number:
            return lesson
    raise ValueError(f"lesson: expected a number from 0 to {LESSONS[-1].number}, got {number}")


def next_lesson(lesson: Lesson) -> Lesson | None:
    """Return the lesson after this one; None after the last."""
    after = LESSONS.index(lesson) + 1
    return LESSONS[after] if after < len(LESSONS) else None
