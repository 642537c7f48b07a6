"""Lesson 17: bounds on the scores of blocks, attention to the best blocks, and what that loses."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.lesson import UsualMistake

LOST = 12 / (math.exp(5) + 15)
PRODUCTS = "products = torch.maximum(q * lowest, q * highest)"
CHOSEN = "chosen = bounds.topk(count, dim=-1).indices"
VISIBLE = "visible = kept.repeat_interleave(block_size, dim=-1)"
EVEN = "three quarters of the keys are not read, and they are the weak ones: the 5 has most of the weight"
NOTHING = "a score of 0 is not a weight of 0: its exponential is 1"
SCALED = "return products.sum(dim=-1) / math.sqrt(D), as scores are"
FIRST, LAST = "first key", "last key"  # of a block that is one key short
SHORT = "keys[b * block_size : (b + 1) * block_size] are the keys of block b, block_size of them"
FILLED = "scores = scores.masked_fill(~visible, -torch.inf)"


def bounds(q: Tensor, k: Tensor, block_size: int, how: str = "") -> Tensor:
    """Return the bounds of blocks; `how` is a way to go wrong."""
    scale = {"unscaled": 1.0, "by width": float(k.shape[-1])}.get(how, math.sqrt(k.shape[-1]))
    blocks = k.view(-1, block_size, k.shape[-1])
    if block_size > 1 and how in (FIRST, LAST):
        blocks = blocks[:, 1:] if how == FIRST else blocks[:, :-1]
    low, high, q = blocks.amin(1), blocks.amax(1), q[:, None]
    products = {
        "mean": q * blocks.mean(1),
        "highest": q * high,
        "lowest": q * low,
        "smaller": torch.minimum(q * low, q * high),
        "middle": q * (low + high) / 2,
        "magnitudes": q.abs() * blocks.abs().amax(1),
    }.get(how, torch.maximum(q * low, q * high))
    if how == "one bound for all channels":
        return torch.maximum((q * low).sum(-1), (q * high).sum(-1)) / math.sqrt(k.shape[-1])
    if how == "largest score":
        return (q[..., None, :] * blocks).sum(-1).amax(-1) / math.sqrt(k.shape[-1])
    return products.sum(-1) / scale


def select(
    q: Tensor, k: Tensor, v: Tensor, block_size: int, count: int, how: str = ""
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the best blocks; `how` is a way to go wrong."""
    bound = bounds(q, k, block_size)
    chosen = bound.topk(count, dim=-1, largest=how != "smallest").indices
    # Not the best ones of each query, but of the first one for all, or the first blocks or the last.
    if how in ("of one query", "first blocks", "last blocks"):
        first = torch.arange(count).expand_as(chosen)
        others = {"first blocks": first, "last blocks": bound.shape[-1] - 1 - first}
        chosen = others.get(how, chosen[:1].expand_as(chosen))
    kept = torch.zeros_like(bound, dtype=torch.bool).scatter(-1, chosen, True)
    visible = kept.repeat(1, block_size) if how == "tiled" else kept.repeat_interleave(block_size, -1)
    places = torch.arange(len(k)) % block_size
    if how in (FIRST, LAST):
        visible = visible & (places != (0 if how == FIRST else block_size - 1))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    left = {
        "all": scores,
        "inverted": scores.masked_fill(visible, -torch.inf),
        "zero": scores.masked_fill(~visible, 0.0),
    }.get(how, scores.masked_fill(~visible, -torch.inf))
    lse = torch.logsumexp(left, -1)
    lse = {"sum": lse.exp(), "largest": left.amax(-1)}.get(how, lse)
    return torch.softmax(left, -1) @ v, lse


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
    kept, lse = select(q, k, v, 3, 2)[1], torch.logsumexp(q @ k.mT / 2, dim=-1)
    return (
        Case("with 2 of 4 blocks", (kept, lse)),
        Case("with log-sum-exps of about 100", (kept + 100, lse + 100)),
    )


BOUNDS = FunctionTask(
    "block_bounds",
    bounds,
    bound_cases,
    (
        Result(
            "bounds", "(T, blocks)", f"lowest = blocks.amin(dim=1), highest = blocks.amax(dim=1), {PRODUCTS}"
        ),
    ),
    (
        WrongWay(partial(bounds, how="mean"), "block-judged-by-mean"),
        WrongWay(partial(bounds, how="unscaled"), "no-scale", hint=SCALED),
        WrongWay(partial(bounds, how="by width"), "scaled-by-width", hint=SCALED),
        WrongWay(partial(bounds, how="highest"), "bound-of-one-sign"),
        WrongWay(partial(bounds, how="lowest"), "bound-of-one-sign"),
        WrongWay(
            partial(bounds, how="one bound for all channels"),
            said="the larger of two sums is too small: each channel chooses for itself, then they are summed",
            hint=PRODUCTS,
        ),
        *(
            WrongWay(
                partial(bounds, how=which),
                said=f"the {which} of every block is left out, and its score may be above this bound",
                hint=SHORT,
            )
            for which in (FIRST, LAST)
        ),
        WrongWay(
            partial(bounds, how="largest score"),
            said="this is the largest score of each block itself, and every key was read for it. A bound "
            "takes the extremes of each channel, two vectors a block",
            hint=PRODUCTS,
        ),
        WrongWay(
            partial(bounds, how="magnitudes"),
            said="this is a bound, and a loose one: it takes every product as positive; the signs are known",
            hint=PRODUCTS,
        ),
        WrongWay(
            partial(bounds, how="smaller"),
            said="these are the smaller products: a bound from below",
            hint=PRODUCTS,
        ),
        WrongWay(
            partial(bounds, how="middle"),
            "block-judged-by-mean",
            "The middle of the two extremes is no bound: the best key may lie far from it.",
            PRODUCTS,
        ),
    ),
    "no score of a block is above its bound, and two vectors a block were read for it.",
    (
        ("Expected reduction dim", f"a block has no keys: {SHORT}"),
        ("return_types", ".amin(dim=1) and .amax(dim=1): .min and .max give the places too"),
        ("Boolean value", f"{PRODUCTS}: Python's max cannot compare number by number"),
        (
            "must match the size",
            "q is (T, 1, D), so blocks.amin(dim=1) and blocks.amax(dim=1), which are (blocks, D)",
        ),
    ),
)
SELECTED = FunctionTask(
    "selected_attention",
    select,
    selection_cases,
    (
        Result("out", "(T, E)", f"{CHOSEN}; {VISIBLE}; {FILLED}"),
        Result("lse", "(T,)", "lse = torch.logsumexp(scores, dim=-1), of the scores that were kept"),
    ),
    (
        WrongWay(
            partial(select, how="smallest"), said="the blocks with the smallest bounds are read", hint=CHOSEN
        ),
        WrongWay(
            partial(select, how="all"),
            "no-mask",
            "Every key is read: the selection is computed and not used.",
            FILLED,
        ),
        WrongWay(
            partial(select, how="of one query"),
            said="every query reads the best blocks of the first one; each has its own",
            hint="chosen = bounds.topk(count, dim=-1).indices",
        ),
        *(
            WrongWay(partial(select, how=which), said=f"the {which} of every block is not read", hint=SHORT)
            for which in (FIRST, LAST)
        ),
        *(
            WrongWay(
                partial(select, how=f"{which} blocks"),
                said=f"the {which} blocks are read, whatever their bounds are",
                hint="chosen = bounds.topk(count, dim=-1).indices",
            )
            for which in ("first", "last")
        ),
        WrongWay(
            partial(select, how="sum"),
            said="`lse` is the sum of the exponentials; its logarithm is missing",
            hint="lse = torch.logsumexp(scores, dim=-1), of the scores that were kept",
        ),
        WrongWay(
            partial(select, how="largest"),
            said="`lse` is the largest score that was kept; the others belong to the sum as well",
            hint="lse = torch.logsumexp(scores, dim=-1), of the scores that were kept",
        ),
        WrongWay(partial(select, how="inverted"), "inverted-mask", hint=FILLED),
        WrongWay(partial(select, how="zero"), "masked-with-zero", hint=FILLED),
        WrongWay(
            partial(select, how="tiled"),
            said="the keys of a block stand side by side: 0 0 0 1 1 1, not 0 1 0 1 0 1",
            hint=VISIBLE,
        ),
    ),
    "attention to the best blocks, other ones for each query.",
    (
        ("return_types.topk", f"{CHOSEN}: topk gives values and indices"),
        ("cannot be multiplied", f"keep the shape (T, S): {FILLED}"),
        ("must match the size", f"one value for each key is needed, (T, S): {VISIBLE}"),
        ("Expected dtype int", f"{CHOSEN}: topk gives values and indices"),
    ),
    after=BOUNDS,
)
SHARE = FunctionTask(
    "lost_weight",
    lambda kept, lse: 1 - torch.exp(kept - lse),
    share_cases,
    (Result("lost", "(T,)", "return 1 - torch.exp(lse_kept - lse)"),),
    (
        WrongWay(
            lambda kept, lse: torch.exp(lse) - torch.exp(kept),
            said="this is the sum of exponentials that were left out; a share is divided by the sum of all",
            hint="return 1 - torch.exp(lse_kept - lse)",
        ),
        WrongWay(
            lambda kept, lse: 100 * (1 - torch.exp(kept - lse)),
            said="this is in percent; a share is between 0 and 1",
            hint="return 1 - torch.exp(lse_kept - lse)",
        ),
        WrongWay(
            lambda kept, lse: torch.exp(kept - lse),
            said="this is the share that was kept",
            hint="return 1 - torch.exp(lse_kept - lse)",
        ),
        WrongWay(lambda kept, lse: lse - kept, "logarithm-as-share"),
        WrongWay(lambda kept, lse: 1 - kept / lse, "logarithm-as-share"),
        WrongWay(
            lambda kept, lse: 1 - torch.exp(lse - kept),
            said="kept over all, not all over kept: the share is at most 1",
            hint="return 1 - torch.exp(lse_kept - lse)",
        ),
        WrongWay(
            lambda kept, lse: 1 - torch.exp(kept) / torch.exp(lse),
            "softmax-overflow",
            "Right for small numbers; exp(lse) overflows where lse is above 88.",
            "subtract first: 1 - torch.exp(lse_kept - lse)",
        ),
    ),
    "what a selection loses, exactly, for every query.",
)
SAID = "the weight on the 12 keys that are not read"
TASKS = (
    BOUNDS.task(),
    SELECTED.task(),
    SHARE.task(),
    guess_task(
        "weight_that_is_lost",
        LOST,
        SAID,
        within=0.2,
        answers_to={0.75: EVEN, 1 - LOST: "that is the share that was kept", 0.0: NOTHING},
        hint="the exponentials of the 12 scores, divided by those of all 16; the exponential of 0 is 1",
    ),
)
USUAL_MISTAKES = (
    UsualMistake("block-judged-by-mean", "torch.maximum(q * lowest, q * highest)", "q * blocks.mean(dim=1)"),
    UsualMistake("bound-of-one-sign", "torch.maximum(q * lowest, q * highest)", "q * highest"),
    UsualMistake("masked-with-zero", "scores.masked_fill(~visible, -torch.inf)", "scores * visible"),
    UsualMistake("logarithm-as-share", "1 - torch.exp(lse_kept - lse)", "lse - lse_kept"),
)
