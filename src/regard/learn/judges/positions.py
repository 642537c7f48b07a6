"""Lesson 8: rotary positions, a module that uses them, and the bias of ALiBi."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import alibi_slopes
from regard.layers.rotary import Rotary
from regard.learn.judges.common.first_run import OutputShape, first_run
from regard.learn.judges.common.functions import Case, FunctionTask
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import TOLERANCE, is_equal, largest_difference
from regard.learn.judges.common.verdicts import (
    Variant,
    attend,
    check_attention,
    edited_variants,
    example_picture,
    is_right,
    named_mistake,
    reject_variants,
)
from regard.learn.judges.own_projections import causal_weights, check_output
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.learn.wrong_ways import define
from regard.stages.example import X, with_weights

ROTATE, LAYER, ALIBI = "rotate", "PositionalAttention", "alibi_bias"
INIT: dict[str, Any] = {"d_model": 32, "num_heads": 4}
PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")


def _vectors() -> Tensor:
    return draw(2, 3, 6, 8)


ROTATION = FunctionTask(
    "positions",
    ROTATE,
    lambda: (Case("from position 0 on", (_vectors(),)), Case("with start=5", (_vectors(), 5))),
)


def judge_layer(thing: Any, module: ModuleType) -> Outcome:
    """Run the module once, check it, and ask whether it sees the order of its tokens."""
    if not is_right(ROTATION.judge, getattr(module, ROTATE, None), module):
        raise NotDoneError(
            "it waits for `rotate`, which is not right yet: fix that first", status="unfinished"
        )
    out, weights = OutputShape((2, 6, 32), "(B, T, d_model)"), OutputShape((2, 4, 6, 6), "(B, H, T, T)")
    x = draw(2, 6, 32, seed=1)
    first_run(LAYER, thing, INIT, (x,), out, weights, PROJECTIONS)
    _check_turns(thing(**INIT).eval(), x)
    done = "attention that sees how far apart two tokens are."
    # With its turns the checker would try every mistake on rotary attention, which takes it half a minute.
    with _without_turns(module):
        outcome = check_attention(LAYER, thing, done, init=INIT, causal=True, heads=4)
    if outcome.status == "done":
        _check_turned_weights(thing(**INIT).eval(), x)
    check_output(thing(**INIT), x, 4, "W_o(heads)", outcome, Rotary(8))
    return replace(outcome, picture=_picture(thing))


@contextlib.contextmanager
def _without_turns(module: ModuleType) -> Iterator[None]:
    """While this block runs, `rotate` of the learner's file turns nothing."""
    rotate = getattr(module, ROTATE)
    setattr(module, ROTATE, lambda x, start=0: x)
    try:
        yield
    finally:
        setattr(module, ROTATE, rotate)


def _check_turns(layer: Any, x: Tensor) -> None:
    """Raise what is said of a layer that turns something else than its queries and keys."""

    def run(edited: Any) -> Tensor:
        other = edited(**INIT).eval()
        for projection in PROJECTIONS:
            setattr(other, projection, getattr(layer, projection))
        out: Tensor = attend(other, x)[0]
        return out

    shifted = (
        Variant(
            run(define("positions", LAYER, "rotate(q), rotate(k)", f"rotate(q, {-by}), rotate(k)")),
            said=f"the {late} begin {abs(by)} later, so that every distance is off by {abs(by)}. Queries and "
            "keys have to begin at the same position",
        )
        for late, steps in (("keys", range(1, 9)), ("queries", range(-1, -9, -1)))
        for by in steps
    )
    variants = chain(edited_variants("positions", LAYER, run), shifted)
    reject_variants(attend(layer, x)[0], variants)


def _check_turned_weights(layer: Any, x: Tensor) -> None:
    """Raise what is said of a layer that is right without its turns and has other weights with them."""
    turn = Rotary(8)
    difference = largest_difference(attend(layer, x)[1], causal_weights(layer, x, 4, turn, turn))
    if difference < TOLERANCE:
        return
    said = (
        f"where nothing is turned it is right; turned, its weights are off by up to {difference:.2g}. Each "
        "query and each key has to be turned once, by its own position"
    )
    raise NotDoneError(said, hint="print the shape of what is turned: it should be (B, H, T, head_dim)")


def _picture(thing: Any) -> WeightPicture:
    """The weights of the learner's module on the running example, for heads that know positions only.

    A fourth channel of every token is 1. It alone makes the queries and keys: of head 1 for the same
    position, of head 2 for the position before.
    """
    layer = thing(4, 2).eval()
    x = torch.cat([X, torch.ones(len(X), 1)], dim=1)  # (T, 4)
    W_q, W_k = torch.zeros(4, 4), torch.zeros(4, 4)
    W_q[3] = torch.tensor([4.0, 0.0, 4.0 * math.cos(1), -4.0 * math.sin(1)])
    W_k[3] = torch.tensor([1.5, 0.0, 1.5, 0.0])
    with_weights(layer, W_q=W_q, W_k=W_k)
    with torch.no_grad():
        weights = attend(layer, x[None])[1][0]  # (H, T, T)
    return example_picture(["your head 1 (here)", "your head 2 (one back)"], list(weights))


def judge_alibi(function: Any, module: ModuleType) -> Outcome:
    """Compare the learner's bias with ALiBi's, on the diagonal and left of it."""
    for heads, T in ((8, 6), (2, 4)):
        bias = function(heads, T)
        if not isinstance(bias, Tensor) or tuple(bias.shape) != (heads, T, T):
            got = tuple(bias.shape) if isinstance(bias, Tensor) else type(bias).__name__
            said = f"for {heads} heads and {T} tokens, expected (H, T, T) = {(heads, T, T)}; got {got}"
            raise NotDoneError(said)
        _check_bias(bias, heads, T)
    done = "a penalty that grows with the distance, faster in some heads than in others."
    if not is_equal(bias, bias.mT):
        done += " Above the diagonal it is not compared: the causal mask hides what stands there."
    return Outcome(ALIBI, "done", done)


def _check_bias(bias: Tensor, heads: int, T: int) -> None:
    """Raise what is wrong with a bias (H, T, T) below and on the diagonal."""
    past = torch.ones(T, T, dtype=torch.bool).tril()
    distance = torch.arange(T)[:, None] - torch.arange(T)
    slopes = torch.tensor(alibi_slopes(heads))
    expected = -slopes[:, None, None] * distance
    seen = bias[:, past]
    if is_equal(seen, expected[:, past]):
        return
    if is_equal(seen, -expected[:, past]):
        raise named_mistake("alibi-inverted")
    straight = is_equal(seen, bias[:, 1, :1] * -distance[past].to(bias) * -1)
    if straight and (bias[:, -1, 0] < 0).all():
        got = ", ".join(f"{-slope:.3g}" for slope in bias[:, 1, 0].tolist()[:3])
        right = ", ".join(f"{slope:.3g}" for slope in slopes.tolist()[:3])
        also = " They are right for 8 heads, and have to follow their number." if heads != 8 else ""
        said = f"Your slopes for {heads} heads are {got} …; ALiBi's are {right} …{also}"
        raise named_mistake("alibi-slopes", said)
    said = f"it differs from −slope · (i − j) by up to {largest_difference(seen, expected[:, past]):.2g}"
    if is_equal(bias[:, 1:, :1], bias[:, 1:2, :1].expand(-1, T - 1, 1)):
        said = "it depends on the key alone: two queries have the same bias for a key, however far they are"
    elif is_equal(bias[:, -1:, 1:], bias[:, -1:, :1].expand(-1, 1, T - 1)):
        said = "it depends on the query alone: all its keys have the same bias, so that it changes no weight"
    elif (bias.diagonal(dim1=-2, dim2=-1).abs() > TOLERANCE).any():
        said = "a token's bias for itself is not 0: its distance from itself is"
    raise NotDoneError(said)


TASKS = (
    ROTATION.task(),
    Task(LAYER, judge_layer, trials=(Trial((draw(2, 6, 32),), INIT),)),
    Task(ALIBI, judge_alibi, trials=(Trial((8, 6)), Trial((2, 4)))),
    guess_task("positions", "score_at_distance_3"),
)
