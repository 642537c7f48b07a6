"""Lesson 1: softmax(X Xᵀ) X, compared with the right numbers and with those of each usual mistake."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.learn.hints.errors import describe_error
from regard.learn.judges.tables.first_run import RETURN_BOTH, describe_answer
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.judges.tables.inputs import input_generator
from regard.learn.judges.tables.relations import describe_relation
from regard.learn.judges.tables.variants import TOLERANCE, Variant, find_variant
from regard.learn.judges.tables.verdicts import (
    draw,
    example_picture,
    find_overwritten,
    largest_difference,
    named_mistake,
)
from regard.learn.lesson import Outcome, Task, Trial
from regard.stages.example import X
from regard.stages.simplified import simplified_self_attention

GUESS = "weight_of_model_if_doubled"


def wrong_weights(x: Tensor) -> tuple[Variant, ...]:
    """Return what each usual mistake gives as the weights of tokens x (…, T, d)."""
    scores = x @ x.mT
    weights = torch.softmax(scores, dim=-1)
    return (
        Variant(
            torch.softmax(scores, dim=-2),
            "softmax-over-queries",
            "Your columns sum to 1, not your rows: an output is then no mean of the tokens.",
            "each row has to be divided by its own sum, in a batch (B, T, T) too: dim=-1, and in a sum of "
            "your own keepdim=True",
        ),
        Variant(
            scores,
            "softmax-missing",
            "Your rows do not sum to 1, and weights can be negative: the softmax is missing.",
        ),
        Variant(
            torch.softmax(weights, dim=-1),
            "softmax-twice",
            "Softmax of weights makes them nearly equal: it is taken twice.",
        ),
        Variant(
            torch.exp(scores - scores.amax(-1, keepdim=True)),
            "sum-not-divided",
            "The exponentials are not divided by their sum, so your rows do not sum to 1.",
        ),
        Variant(
            torch.softmax(scores / x.shape[-1] ** 0.5, dim=-1),
            said="the scores are divided by √d, which is lesson 3: leave it out here",
        ),
        Variant(
            scores / scores.sum(-1, keepdim=True),
            said="your rows sum to 1, but they are no softmax: the exponentials are missing, by which "
            "every weight is positive",
        ),
        Variant(
            scores / scores.sum(),
            said="all your weights together sum to 1, and each row should; the exponentials are missing, too",
        ),
        Variant(
            torch.exp(scores),
            "sum-not-divided",
            "The exponentials are not divided by their sum, so your rows do not sum to 1.",
        ),
        Variant(
            torch.softmax(scores.flatten(-2), dim=-1).view_as(scores),
            said="all your weights together sum to 1, and each row should: divide each row by its own sum",
        ),
        Variant(
            torch.sigmoid(scores), said="a sigmoid weighs each token by itself: your rows do not sum to 1"
        ),
        Variant(
            torch.softmax(scores * math.log(2), dim=-1),
            said="the powers are those of 2; softmax takes powers of e, torch.exp(…)",
        ),
        Variant(torch.log_softmax(scores, -1), said="these are the logarithms of the weights, all negative"),
        Variant(
            torch.softmax(-torch.cdist(x, x), dim=-1),
            said="you compare by distance; the lesson compares by the dot product of two tokens",
        ),
        Variant(
            torch.softmax(torch.cdist(x, x), dim=-1),
            said="these are distances, large where two tokens are not alike; take the dot product",
        ),
        Variant(
            torch.softmax(F.cosine_similarity(x[..., None, :], x[..., None, :, :], dim=-1), dim=-1),
            said="this is the cosine, which forgets the lengths; the lesson takes the dot product itself",
        ),
        *(
            Variant(
                torch.softmax(_with_zeros(scores, kind, index), dim=-1),
                said=f"the {which} {kind} of your scores is 0: {pairs.format(which)}. Does a loop begin "
                "too late or end too early?",
            )
            for kind, pairs in (
                ("column", "no token is compared with the {} one"),
                ("row", "the {} token is compared with none"),
            )
            for which, index in (("last", -1), ("first", 0))
        ),
    )


def _with_zeros(scores: Tensor, kind: str, index: int) -> Tensor:
    """The scores with a row or a column of zeros."""
    scores = scores.clone()
    (scores if kind == "row" else scores.mT)[..., index, :] = 0
    return scores


def judge_function(function: Any, module: ModuleType) -> Outcome:
    """Compare the learner's function with the right one, on one sequence and on a batch."""
    name = "simplified_self_attention"
    generator = input_generator()
    one, batch = torch.randn(7, 3, generator=generator), torch.randn(2, 5, 4, generator=generator)
    answer = function(one.clone())
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(a, Tensor) for a in answer):
        got = "None: is `return` missing?" if answer is None else describe_answer(answer)
        said = f"expected two tensors, the output and the weights; got {got}"
        return Outcome(name, "wrong", said, hint=RETURN_BOTH)
    for x in (one, batch):
        given = x.clone()
        try:
            out, weights = function(given)
        except RuntimeError as error:
            if x is one:
                raise
            return _fails_on_a_batch(name, error, module)
        wrong = find_overwritten(name, [given], [x]) or _compare(name, x, out, weights)
        if wrong is not None:
            return wrong
    _, weights = function(X)
    done = "softmax(X Xᵀ) X: every token is now a mean of all tokens, weighted by how alike they are."
    return Outcome(name, "done", done, picture=example_picture(["your weights"], [weights]))


def _fails_on_a_batch(name: str, error: RuntimeError, module: ModuleType) -> Outcome:
    """The outcome for a function that works on one text only."""
    path = Path(str(module.__file__))
    evidence = f"It works on one text and fails on a batch: {describe_error(error, path).rstrip('.')}"
    hint = "scores = x @ x.mT, which swaps the last two axes only"
    if re.search(r"\.(T|t\(\)|transpose\(0, 1\))(?!\w)", path.read_text(encoding="utf-8")):
        return named_mistake(name, "dot-t-on-a-batch", evidence, hint)
    # A loop over x, for one: in a batch it runs over texts, not over tokens.
    said = f"{evidence}. A batch is (B, T, d): its first axis counts texts, and len(x) is their number"
    return Outcome(name, "wrong", said, hint=hint)


def _compare(name: str, x: Tensor, out: Tensor, weights: Tensor) -> Outcome | None:
    """Return what is wrong with the answer for x; None if nothing is."""
    expected_out, expected = simplified_self_attention(x)
    if weights.shape == expected_out.shape and out.shape == expected.shape:
        said = "the first tensor has the shape of the weights: are out and weights exchanged?"
        return Outcome(name, "wrong", said, hint="return out, weights, in this order")
    if weights.shape != expected.shape:
        shapes = (
            f"expected the weights {tuple(expected.shape)} for x {tuple(x.shape)}, got {tuple(weights.shape)}"
        )
        return Outcome(name, "wrong", f"{shapes}: one row for each query, one column for each key")
    if largest_difference(weights, expected) > TOLERANCE:
        if wrong := find_variant(name, weights, wrong_weights(x)):
            return wrong
        how = f"differs from softmax(X Xᵀ) by up to {largest_difference(weights, expected):.2g}"
        said = f"what you return as weights {describe_relation(weights, expected) or how}"
        if largest_difference(weights.sum(-2), torch.ones(())) < TOLERANCE:
            said = "Your columns sum to 1, not your rows; and the scores are not the dot products"
        if largest_difference(out, weights @ x) > TOLERANCE:
            said = f"{said}; and the output is not their product with x"
        return Outcome(name, "wrong", said)
    if out.shape != expected_out.shape or largest_difference(out, expected_out) > TOLERANCE:
        how = describe_relation(out, expected_out) if out.shape == expected_out.shape else ""
        said = "the weights are right; the output is not their product with x"
        return Outcome(name, "wrong", f"{said}{how and f': it {how}'}")
    return None


def judge_prediction(guess: Any, module: ModuleType) -> Outcome:
    """Compare the guess with the weight; any guess will do, since the lesson is in the comparison."""
    if isinstance(guess, int | float) and not 0 <= guess <= 1:
        return Outcome(
            GUESS,
            "wrong",
            f"a weight lies between 0 and 1; you guessed {guess:g}",
            hint="guess a number from 0 to 1",
        )
    return PREDICTION.judge(guess, module)


PREDICTION = guess_task("similarity", GUESS)
TASKS = (
    Task("simplified_self_attention", judge_function, trials=(Trial((X,)), Trial((draw(2, 5, 4),)))),
    Task(GUESS, judge_prediction),
)
