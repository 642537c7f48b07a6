"""Lesson 15: attention a block of keys at a time, and the merge of two parts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw, usual
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.judges.tables.made_tensors import all_pairs, tensors_made

MEGABYTES = 8192 * 8192 * 4 / 1e6
SHRINK = "total * shrink + exponentials.sum(dim=-1) and mixed * shrink[..., None] + exponentials @ v_block"
STARTS = "for start in range(0, k.shape[-2], block_size): every block that begins before the end is read"
HIGHEST = "new_highest = torch.maximum(highest, scores.amax(dim=-1))"
AXES = ".amax(dim=-1) and .sum(dim=-1) take the axis of the keys away, and x[..., None] adds an axis of 1"
LARGEST = "torch.maximum(highest, scores.amax(dim=-1))"
BLOCKS = "range(0, k.shape[-2], block_size)"
SUM, MIX = "total * shrink + exponentials.sum(dim=-1)", "mixed * shrink[..., None] + exponentials @ v_block"
SUM_TIMES_SHRINK = "(total + exponentials.sum(dim=-1)) * shrink"
MIX_TIMES_SHRINK = "(mixed + exponentials @ v_block) * shrink[..., None]"
OUT, LSE = "out = mixed / total[..., None]", "highest + torch.log(total)"
EXPONENTIALS = "torch.exp(scores - new_highest[..., None])"
# Some take each block's exponentials with its own largest score: the right sums first, then wrong ones.
OWN_LARGEST = "torch.exp(scores - scores.amax(dim=-1, keepdim=True))"
NEW = "torch.exp(scores.amax(dim=-1) - new_highest)"
OWN_SUMS = (f"total * shrink + exponentials.sum(dim=-1) * {NEW}", SUM, "total + exponentials.sum(dim=-1)")
OWN_MIXES = (
    f"mixed * shrink[..., None] + exponentials @ v_block * {NEW}[..., None]",
    MIX,
    "mixed + exponentials @ v_block",
)
BOTH = "torch.logaddexp(lse_a, lse_b)"
MEAN = "share_a[..., None] * out_a + share_b[..., None] * out_b"
SHARE = "torch.exp(lse_a - lse)"
SHARES = "torch.exp(lse_a - lse)\ntorch.exp(lse_b - lse)"


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


FLASH = FunctionTask(
    "online_softmax",
    "flash_attention",
    flash_cases,
    (Result("out", "(…, T, E)"), Result("lse", "(…, T)", f"lse = {LSE}")),
    (
        *(
            WrongWay(
                f"{EXPONENTIALS}\n{SUM}\n{MIX}",
                f"{OWN_LARGEST}\n{total}\n{mixed}",
                "block-not-rescaled",
                "The exponentials of a block are made with its own largest score here. So two things shrink: "
                "the sums so far, by exp(highest − new_highest), and this block's, by exp(own largest − "
                "new_highest). Both hold for the sum and for the mix.",
                SHRINK,
            )
            for total, mixed in tuple(product(OWN_SUMS, OWN_MIXES))[1:]
        ),
        WrongWay(
            f"{EXPONENTIALS}\n{SUM}\n{MIX}",
            f"torch.exp(scores)\n{OWN_SUMS[0]}\n{OWN_MIXES[0]}",
            "softmax-overflow",
            "The largest score of a block is not subtracted from its scores, and the block shrinks as if it "
            "were.",
            f"exponentials = {EXPONENTIALS}",
        ),
        WrongWay(
            "highest = new_highest",
            "highest = torch.where(highest.isinf(), new_highest, highest)",
            "block-not-rescaled",
            "`highest` stays what it was after the first block: the sums shrink by too much from then on.",
        ),
        WrongWay(" / math.sqrt(q.shape[-1])", "", "no-scale"),
        WrongWay("math.sqrt(q.shape[-1])", "q.shape[-1]", "scaled-by-width"),
        WrongWay(
            BLOCKS,
            "range(0, k.shape[-2] - block_size + 1, block_size)",
            said="The last block is left out where it is shorter than block_size: its keys are never read.",
            hint=f"{STARTS}, also where S is no multiple of block_size",
        ),
        WrongWay(
            BLOCKS,
            "range(0, k.shape[-2] - block_size, block_size)",
            said="The last block is never read, whether it is whole or not.",
            hint=STARTS,
        ),
        WrongWay(
            LSE,
            "torch.log(total)",
            said="The largest score was subtracted from every exponent, and has to be added again in `lse`.",
        ),
        WrongWay(
            LSE,
            "total",
            said="`lse` is the sum of exponentials itself, without its logarithm and without the largest "
            "score that was subtracted.",
        ),
        WrongWay(
            LSE, "highest", said="`lse` is the largest score alone; the logarithm of the sum is missing."
        ),
        WrongWay(LSE, "highest + torch.log2(total)", "lse-base-2"),
        WrongWay(
            "scores - new_highest[..., None]",
            "scores",
            "softmax-overflow",
            "The largest score is not subtracted from this block's scores, and the sums so far shrink as if "
            "it were.",
        ),
        WrongWay(
            LARGEST,
            "torch.maximum(highest, scores.max())",
            "softmax-overflow",
            "The largest score of all queries is subtracted. For a query whose scores are far below it, all "
            "exponentials are 0: each query needs a largest score of its own.",
        ),
        WrongWay(
            f"{SUM}\n{MIX}",
            "total + exponentials.sum(dim=-1)\nmixed + exponentials @ v_block",
            "block-not-rescaled",
            hint=SHRINK,
        ),
        WrongWay(
            MIX,
            "mixed + exponentials @ v_block",
            "block-not-rescaled",
            "The sum is multiplied by `shrink` and the mix is not: earlier values weigh too much.",
        ),
        WrongWay(
            SUM,
            "total + exponentials.sum(dim=-1)",
            "block-not-rescaled",
            "The mix is multiplied by `shrink` and the sum is not: the output is too small.",
        ),
        WrongWay(
            "torch.exp(highest - new_highest)",
            "torch.exp(new_highest - highest)",
            said="Every number is NaN. Before the first block `highest` is −inf: `shrink` has to be 0 then, "
            "and the exponentials subtract the new largest score, not the old one.",
            hint="shrink = torch.exp(highest - new_highest): 0 at first, and never above 1",
        ),
        *(
            WrongWay(
                right,
                wrong,
                said="`shrink` is for what earlier blocks have left. This block's own exponentials are "
                f"relative to the new largest score already, and are multiplied by it, too{where}.",
                hint=f"{SHRINK}: shrink first, then add",
            )
            for right, wrong, where in (
                (f"{SUM}\n{MIX}", f"{SUM_TIMES_SHRINK}\n{MIX_TIMES_SHRINK}", ""),
                (SUM, SUM_TIMES_SHRINK, ", in `total`"),
                (MIX, MIX_TIMES_SHRINK, ", in `mixed`"),
            )
        ),
        *(
            WrongWay(
                right + end,
                wrong + last,
                said=f"The {inside} is divided by the total inside the loop, and is {then} after it. The "
                "total is not whole before the last block: until then both are sums.",
                hint=f"mixed = {MIX}; after the loop {OUT}",
            )
            for inside, right, wrong in (
                ("mix so far", "highest = new", "mixed, highest = mixed / total[..., None], new"),
                ("mix of the block", "exponentials @ v_block", "exponentials @ v_block / total[..., None]"),
            )
            for end, last, then in ((f"\n{OUT}", "\nout = mixed", "never divided"), ("", "", "divided again"))
        ),
        *(
            WrongWay(
                "exponentials @ v_block",
                weights,
                said="The weights of each block are divided by their own sum: every block then counts as "
                "much as the others. Divide once, after the last block.",
            )
            for weights in (
                "exponentials @ v_block / exponentials.sum(dim=-1)[..., None]",
                "torch.softmax(scores, dim=-1) @ v_block",
            )
        ),
        WrongWay(
            "exponentials.sum(dim=-1)",
            "exponentials.mean(dim=-1)",
            said="`total` gets the mean of the exponentials; softmax divides by their sum.",
        ),
        WrongWay(
            OUT,
            "out = mixed",
            "sum-not-divided",
            "The mix is returned as it is: its weights do not sum to 1.",
        ),
        WrongWay(
            "q.new_full(q.shape[:-1], -torch.inf)",
            "q.new_zeros(q.shape[:-1])",
            said="`highest` begins at 0. Where every score is far below that, all exponentials are 0, and so "
            "is their sum: 0 / 0 is NaN.",
        ),
        WrongWay(LARGEST, "torch.zeros_like(highest)", "softmax-overflow"),
        WrongWay(
            LARGEST,
            "scores.amax(dim=-1)",
            "softmax-overflow",
            "The largest score of this block alone is subtracted. Where an earlier block had a larger one, "
            "`shrink` is above 1, and it overflows.",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (
                    "torch.exp(highest - new_highest)",
                    "torch.exp(highest) - torch.exp(new_highest)",
                    "`shrink` is exp(highest − new_highest), a quotient of exponentials, no difference",
                ),
                (EXPONENTIALS, "torch.softmax(scores, dim=-1)", "softmax divides by this block's sum alone"),
                (
                    EXPONENTIALS,
                    "torch.exp(scores) - new_highest[..., None]",
                    "the largest score is subtracted from the exponential, and belongs into the exponent",
                ),
                (
                    EXPONENTIALS,
                    "torch.exp(scores - scores.max())",
                    "another number is subtracted than the one that `shrink` allows for, `new_highest`",
                ),
                (
                    SUM,
                    "exponentials.sum(dim=-1)",
                    "`total` holds the last block alone; the sum so far is lost",
                ),
                (SUM, "total * shrink", "no block's exponentials are added to `total`: it stays 0"),
                (
                    SUM,
                    "total * shrink + exponentials.sum()",
                    "`total` gets the exponentials of all queries; each query has a sum of its own",
                ),
                (MIX, "exponentials @ v_block", "`mixed` holds the last block alone; the mix so far is lost"),
                (
                    OUT,
                    "out = torch.softmax(mixed, dim=-1)",
                    "softmax is of scores; `mixed` is a sum of values",
                ),
                (OUT, "out = mixed / total.sum()", "this divides by the totals of all queries together"),
                (
                    LSE,
                    "highest * torch.log(total)",
                    "the logarithm of a product is a sum, `lse` is a product",
                ),
                (LSE, "highest + total", "the logarithm of `total` is missing in `lse`"),
                (LSE, "torch.logsumexp(scores, dim=-1)", "`lse` is of the last block alone"),
                (LSE, "highest - torch.log(total)", "the sign is lost: log(exp(highest) · total) is a sum"),
            )
        ),
    ),
    "attention without a row of scores: only one block of them exists at a time.",
    (
        ("Expected reduction dim", f"a block is empty, since it begins after the last key: {STARTS}"),
        ("return_types.max", f"{HIGHEST}: .max(dim=-1) gives the places too"),
        ("Boolean value", f"{HIGHEST}: Python's max cannot compare number by number"),
        ("must match the size", AXES),
    ),
    shortcut=whole_matrix,
)
MERGE = FunctionTask(
    "online_softmax",
    "merge",
    merge_cases,
    (Result("out", "(…, T, E)"), Result("lse", "(…, T)", f"lse = {BOTH}")),
    (
        WrongWay(
            MEAN,
            "(out_a + out_b) / 2",
            "merge-without-lse",
            "Both parts count the same, however much of the weight each has.",
        ),
        WrongWay(
            BOTH,
            "lse_a + lse_b",
            said="a sum of logarithms is the logarithm of a product; here exp(lse_a) and exp(lse_b) add up",
        ),
        WrongWay(
            SHARES,
            "torch.exp(lse_a)\ntorch.exp(lse_b)",
            "sum-not-divided",
            "The shares are not divided by their sum, exp(lse).",
        ),
        WrongWay(
            SHARES,
            "torch.exp(lse_a - torch.maximum(lse_a, lse_b))\ntorch.exp(lse_b - torch.maximum(lse_a, lse_b))",
            "sum-not-divided",
            "The shares are relative to the larger part and do not sum to 1: divide by their sum.",
        ),
        WrongWay(
            MEAN,
            "out_a + out_b",
            "sum-not-divided",
            "The outputs are added. Each is a mean already, and the shares of the two have to sum to 1.",
        ),
        WrongWay(
            MEAN,
            "share_b[..., None] * out_a + share_a[..., None] * out_b",
            said="the shares are exchanged: each part is weighted by the other's",
        ),
        WrongWay(SHARES, "lse_a / (lse_a + lse_b)\nlse_b / (lse_a + lse_b)", "logarithm-as-share"),
        WrongWay(
            BOTH,
            "torch.maximum(lse_a, lse_b)",
            said="`lse` is the larger of the two; the smaller part belongs to the sum as well",
        ),
        WrongWay(
            BOTH,
            f"{BOTH} - torch.maximum(lse_a, lse_b)",
            said="the larger one was subtracted before the exponentials, and has to be added again",
        ),
        WrongWay(
            BOTH,
            "torch.maximum(lse_a, lse_b) + torch.exp(-(lse_a - lse_b).abs()) + 1",
            said="the sum of the exponentials is added to the larger one; its logarithm belongs there",
        ),
        WrongWay(
            BOTH,
            "torch.maximum(lse_a, lse_b) + torch.log1p(torch.exp(lse_b - torch.maximum(lse_a, lse_b)))",
            said="from each part the same number has to be subtracted, the larger of the two: here part a "
            "counts as 1 whatever lse_a is",
        ),
        WrongWay(
            BOTH,
            "torch.log(torch.exp(lse_a) + torch.exp(lse_b))",
            "softmax-overflow",
            "Right for small numbers; exp(lse) overflows where lse is above 88.",
            f"lse = {BOTH}, which subtracts the larger one first",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (BOTH, "torch.log(lse_a + lse_b)", "not the logarithms add up: exp(lse_a) and exp(lse_b) do"),
                (
                    BOTH,
                    "torch.exp(lse_a) + torch.exp(lse_b)",
                    "the sum is right, and its logarithm is missing",
                ),
                (BOTH, "(lse_a + lse_b) / 2", "this is a mean of logarithms, not the logarithm of a sum"),
                (SHARE, "torch.exp(lse_a)", "`share_a` is not divided by the sum of both, exp(lse)"),
                (
                    SHARE,
                    "lse_a / lse",
                    "`share_a` is a ratio of logarithms; take the exponential of a difference",
                ),
                (SHARE, "lse_a - lse", "`share_a` is the logarithm of the share: its exponential is missing"),
                (SHARE, "torch.exp(lse - lse_a)", "`share_a` is upside down: all over a, not a over all"),
                (SHARE, "torch.exp(lse_a) / lse", "`share_a` is divided by a logarithm, not by the sum"),
                (MEAN, "share_a[..., None] * out_a", "part b is not in the output"),
            )
        ),
    ),
    "two parts are one: this is how the keys of several blocks, or several machines, come together.",
    (
        ("argument 'dim'", f"{BOTH}; logsumexp sums along an axis of one tensor"),
        ("must match the size", AXES),
    ),
    judged_first=("lse",),
)
TASKS = (
    FLASH.task(),
    MERGE.task(),
    guess_task(
        "megabytes_of_scores",
        MEGABYTES,
        "the number of megabytes of 8,192 × 8,192 scores",
        within=0.05,
        answers_to={
            8192 * 8192 / 1e6: "these are millions of scores, and each takes 4 bytes",
            8192 * 4 / 1e6: "these are the scores of one query, and there are 8,192 queries",
            8192 * 8192 * 4 / 1e3: "these are kilobytes",
            8192 * 8192 * 4.0: "these are bytes",
        },
        hint="queries times keys times bytes, divided by a million",
    ),
)
USUAL_MISTAKES = usual(
    (FLASH, MERGE), "block-not-rescaled", "sum-not-divided", "softmax-overflow", "merge-without-lse"
)
