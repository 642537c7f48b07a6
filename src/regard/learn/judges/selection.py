"""Lesson 17: bounds on the scores of blocks, attention to the best blocks, and what that loses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw, usual
from regard.learn.judges.tables.guesses import guess_task

LOST = 12 / (math.exp(5) + 15)
LARGER = "torch.maximum(q * lowest, q * highest)"
PRODUCTS = f"products = {LARGER}"
BLOCKS = "k.view(-1, block_size, D)"
LOWEST, HIGHEST = "blocks.amin(dim=1)", "blocks.amax(dim=1)"
BEST = "bounds.topk(count, dim=-1).indices"
REPEATED = "kept.repeat_interleave(block_size, dim=-1)"
FILLED = "scores.masked_fill(~visible, -torch.inf)"
SHORT = "keys[b * block_size : (b + 1) * block_size] are the keys of block b, block_size of them"
LSE = "lse = torch.logsumexp(scores, dim=-1)"
OF_KEPT = f"{LSE}, of the scores that were kept"
SHARE_LEFT = "1 - torch.exp(lse_kept - lse)"


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


BOUNDS = FunctionTask(
    "selection",
    "block_bounds",
    bound_cases,
    (Result("bounds", "(T, blocks)"),),
    (
        WrongWay(LARGER, "q * blocks.mean(dim=1)", "block-judged-by-mean"),
        WrongWay(" / math.sqrt(D)", "", "no-scale"),
        WrongWay("math.sqrt(D)", "D", "scaled-by-width"),
        WrongWay(
            "math.sqrt(D)",
            "math.sqrt(block_size)",
            "constant-scale",
            "The scale is √ of the number of keys in a block; a dot product has D terms.",
        ),
        WrongWay(
            LARGER,
            "q.abs() * highest",
            said="q.abs() loses the sign: where the query is negative, the smallest number counts",
        ),
        WrongWay(LARGER, "q * highest", "bound-of-one-sign"),
        WrongWay(LARGER, "q * lowest", "bound-of-one-sign"),
        WrongWay(
            f"{LARGER}\nproducts.sum(dim=-1)",
            "q * lowest\ntorch.maximum(products.sum(dim=-1), (q * highest).sum(dim=-1))",
            said="the larger of two sums is too small: each channel chooses for itself, then they are summed",
            hint=PRODUCTS,
        ),
        *(
            WrongWay(
                BLOCKS,
                f"{BLOCKS}[:, {others}]",
                said=f"the {which} key of every block is left out, and its score may be above this bound",
                hint=SHORT,
            )
            for which, others in (
                ("first", "min(1, block_size - 1) :"),
                ("last", ": max(1, block_size - 1)"),
            )
        ),
        WrongWay(
            "products.sum(dim=-1)",
            "(q[:, :, None] * blocks).sum(dim=-1).amax(dim=-1)",
            said="this is the largest score of each block itself, and every key was read for it. A bound "
            "takes the extremes of each channel, two vectors a block",
            hint=PRODUCTS,
        ),
        WrongWay(
            LARGER,
            "q.abs() * blocks.abs().amax(dim=1)",
            said="this is a bound, and a loose one: it takes every product as positive; the signs are known",
        ),
        WrongWay(
            LARGER,
            "torch.minimum(q * lowest, q * highest)",
            said="these are the smaller products: a bound from below",
        ),
        WrongWay(
            LARGER,
            "q * (lowest + highest) / 2",
            "block-judged-by-mean",
            "The middle of the two extremes is no bound: the best key may lie far from it.",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (LOWEST, "blocks.min()", "`lowest` is one number for all blocks; it is one for each channel"),
                (
                    LOWEST,
                    "-blocks.amax(dim=1)",
                    "no product is below 0: the smallest number is not minus the largest",
                ),
                (HIGHEST, "blocks.max(dim=1).indices", "`highest` holds places, not numbers"),
                (HIGHEST, "blocks.abs().amax(dim=1)", "`highest` has lost its sign: it is a size"),
                (HIGHEST, "blocks.norm(dim=1)", "`highest` is a length, that of a channel's numbers"),
                (HIGHEST, "blocks.sum(dim=1)", "`highest` is a sum over the keys, not their largest number"),
                (
                    LARGER,
                    "q * lowest + q * highest",
                    "the larger of the two products is the bound, not the sum",
                ),
            )
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
    "selection",
    "selected_attention",
    selection_cases,
    (Result("out", "(T, E)"), Result("lse", "(T,)", OF_KEPT)),
    (
        WrongWay(
            BEST,
            "bounds.topk(count, dim=-1, largest=False).indices",
            said="the blocks with the smallest bounds are read",
        ),
        WrongWay(FILLED, "scores", "no-mask", "Every key is read: the selection is computed and not used."),
        WrongWay(
            BEST,
            f"{BEST}[:1].expand(len(q), -1)",
            said="every query reads the best blocks of the first one; each has its own",
        ),
        *(
            WrongWay(
                REPEATED,
                f"{REPEATED} & (torch.arange(len(k)) % block_size != {place})",
                said=f"the {which} key of every block is not read",
                hint=SHORT,
            )
            for which, place in (("first", "0"), ("last", "block_size - 1"))
        ),
        *(
            WrongWay(
                BEST,
                f"({blocks}).expand(len(q), -1)",
                said=f"the {which} are read, whatever their bounds are",
            )
            for which, blocks in (
                ("first blocks", "torch.arange(count)"),
                ("last blocks", "bounds.shape[-1] - 1 - torch.arange(count)"),
            )
        ),
        WrongWay(
            LSE,
            f"{LSE}.exp()",
            said="`lse` is the sum of the exponentials; its logarithm is missing",
            hint=OF_KEPT,
        ),
        WrongWay(
            LSE,
            "lse = scores.amax(dim=-1)",
            said="`lse` is the largest score that was kept; the others belong to the sum as well",
            hint=OF_KEPT,
        ),
        WrongWay(
            REPEATED,
            f"{REPEATED} & (count == 1)",
            said="a key is read if its block is any of the chosen ones, not if it is all of them",
        ),
        WrongWay(FILLED, "scores.masked_fill(visible, -torch.inf)", "inverted-mask"),
        WrongWay(FILLED, "scores * visible", "masked-with-zero"),
        WrongWay(" / math.sqrt(q.shape[-1])", "", "no-scale"),
        WrongWay("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=0)", "softmax-over-queries"),
        WrongWay(
            BEST,
            "bounds.argsort(dim=0, descending=True)[:, :count]",
            said="the blocks are sorted along the queries: each query sorts its own bounds, dim=-1",
        ),
        WrongWay(
            LSE,
            "lse = torch.zeros(len(q))",
            said="`lse` is the logarithm of the sum of weights, which is 1: it is made of the scores",
            hint=OF_KEPT,
        ),
        WrongWay(
            REPEATED,
            "kept.repeat(1, block_size)",
            said="the keys of a block stand side by side: 0 0 0 1 1 1, not 0 1 0 1 0 1",
        ),
        WrongWay(
            REPEATED,
            "kept[:, torch.arange(len(k)) % block_size % kept.shape[-1]]",
            said="key s is in block s // block_size; the remainder, %, is its place in the block",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (BEST, "bounds.topk(1).indices", "one block is read; `count` says how many"),
                (
                    FILLED,
                    "scores.masked_fill(~visible, -1.0)",
                    "a score of −1 has a weight; only −inf has none",
                ),
            )
        ),
    ),
    "attention to the best blocks, other ones for each query.",
    (
        ("return_types.topk", f"chosen = {BEST}: topk gives values and indices"),
        ("cannot be multiplied", f"keep the shape (T, S): scores = {FILLED}"),
        ("must match the size", f"one value for each key is needed, (T, S): visible = {REPEATED}"),
        ("Expected dtype int", f"chosen = {BEST}: topk gives values and indices"),
    ),
    after=BOUNDS,
)
SHARE = FunctionTask(
    "selection",
    "lost_weight",
    share_cases,
    (Result("lost", "(T,)"),),
    (
        WrongWay(
            SHARE_LEFT,
            "torch.exp(lse) - torch.exp(lse_kept)",
            said="this is the sum of exponentials that were left out; a share is divided by the sum of all",
        ),
        WrongWay(SHARE_LEFT, f"100 * ({SHARE_LEFT})", said="this is in percent; a share is between 0 and 1"),
        WrongWay(SHARE_LEFT, "torch.exp(lse_kept - lse)", said="this is the share that was kept"),
        WrongWay(SHARE_LEFT, "lse - lse_kept", "logarithm-as-share"),
        *(
            WrongWay(SHARE_LEFT, wrong, "logarithm-as-share")
            for wrong in ("1 - lse_kept / lse", "lse_kept / lse")
        ),
        WrongWay(
            SHARE_LEFT,
            "1 - torch.exp(lse - lse_kept)",
            said="kept over all, not all over kept: the share is at most 1",
        ),
        WrongWay(
            SHARE_LEFT,
            "1 - torch.exp(lse_kept) / torch.exp(lse)",
            "softmax-overflow",
            "Right for small numbers; exp(lse) overflows where lse is above 88.",
            f"subtract first: {SHARE_LEFT}",
        ),
        *(
            WrongWay(SHARE_LEFT, wrong, said=said)
            for wrong, said in (
                (
                    "torch.exp(lse - lse_kept)",
                    "this is all over kept, and the share of the others is asked for",
                ),
                (
                    "1 - (lse_kept - lse)",
                    "the exponential is missing: a difference of logarithms is no share",
                ),
                ("lse", "this is the log-sum-exp of all scores, compared with nothing"),
            )
        ),
    ),
    "what a selection loses, exactly, for every query.",
)
TASKS = (
    BOUNDS.task(),
    SELECTED.task(),
    SHARE.task(),
    guess_task(
        "weight_that_is_lost",
        LOST,
        "the weight on the 12 keys that are not read",
        within=0.2,
        answers_to={
            0.75: "three quarters of the keys are not read, and they are the weak ones: the 5 has most of "
            "the weight",
            1 - LOST: "that is the share that was kept",
            0.0: "a score of 0 is not a weight of 0: its exponential is 1",
        },
        hint="the exponentials of the 12 scores, divided by those of all 16; the exponential of 0 is 1",
    ),
)
USUAL_MISTAKES = usual(
    (BOUNDS, SELECTED, SHARE),
    "block-judged-by-mean",
    "bound-of-one-sign",
    "masked-with-zero",
    "logarithm-as-share",
)
