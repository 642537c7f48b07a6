"""Lesson 15: attention a block of keys at a time, and the merge of two parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.judges.tables.made_tensors import all_pairs, tensors_made
from regard.learn.lesson import UsualMistake

MEGABYTES = 8192 * 8192 * 4 / 1e6
SHRINK = "total * shrink + exponentials.sum(dim=-1) and mixed * shrink[..., None] + exponentials @ v_block"
SCORES = "scores = q @ k_block.mT / math.sqrt(q.shape[-1])"
STARTS = "for start in range(0, k.shape[-2], block_size): every block that begins before the end is read"
HIGHEST = "new_highest = torch.maximum(highest, scores.amax(dim=-1))"


def blockwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int,
    *,
    shrink_total: float = 1.0,
    shrink_mixed: float = 1.0,
    shrink_own: float = 0.0,
    shrink_mix: float = 0.0,
    subtract: str = "so far",
    divide: bool = True,
    divide_inside: str = "",
    begin: float = -torch.inf,
    shifted: bool = True,
    add: str = "",
    scale: Callable[[int], float] = math.sqrt,
    starts: Callable[[int, int], range] = lambda keys, block_size: range(0, keys, block_size),
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp, computed block by block; each option is a way to go wrong.

    The factor of a sum is raised to a power: 0 leaves it out, −1 divides by it; `shrink_own` and `shrink_mix`
    are those of what this block adds to them. It may `add` "weights" that sum to 1 or a "softmax", which are
    the same unless they underflow, or the "mean" of its exponentials. The "mix so far" or the "mix of the
    block" may be divided by the total inside the loop. From the exponents we `subtract` the largest score
    "so far", that of this "block", that of "all" queries, or "nothing"; if they are not `shifted`, only the
    factor knows it. Before the first block the largest score is `begin`. Blocks begin at `starts`, and scores
    are divided by `scale` of the width.
    """
    highest, total = torch.tensor(begin), torch.tensor(0.0)
    mixed = torch.zeros(*q.shape[:-1], v.shape[-1])
    for start in starts(k.shape[-2], block_size):
        block = slice(start, start + block_size)
        scores = q @ k[..., block, :].mT / scale(q.shape[-1])
        new = {
            "so far": torch.maximum(highest, scores.amax(-1)),
            "all": torch.maximum(highest, scores.max()).expand(q.shape[:-1]),
            "block": scores.amax(-1),
            "nothing": torch.zeros(q.shape[:-1]),
        }[subtract]
        exponentials = torch.exp(scores - new[..., None] if shifted else scores)
        shrink = torch.exp(highest - new)
        own = exponentials.sum(-1) * shrink**shrink_own
        mix = exponentials @ v[..., block, :] * (shrink**shrink_mix)[..., None]
        mix = mix / own[..., None] if add == "weights" else mix
        mix = torch.softmax(scores, dim=-1) @ v[..., block, :] if add == "softmax" else mix
        own = own / scores.shape[-1] if add == "mean" else own
        total = total * shrink**shrink_total + own
        mix = mix / total[..., None] if divide_inside == "mix of the block" else mix
        mixed = mixed * (shrink**shrink_mixed)[..., None] + mix
        mixed = mixed / total[..., None] if divide_inside == "mix so far" else mixed
        highest = new
    return mixed / total[..., None] if divide else mixed, highest + total.log()


def with_lse(how: Callable[[Tensor, Tensor], Tensor], *arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the right output, and a number for each query made of its largest score and its total."""
    q, k, *_ = arguments
    out, lse = blockwise(*arguments)
    highest = (q @ k.mT / math.sqrt(q.shape[-1])).amax(dim=-1)
    return out, how(highest, torch.exp(lse - highest))


def joined(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, how: str = ""
) -> tuple[Tensor, Tensor]:
    """Return two parts merged; `how` is a way to go wrong."""
    lse = {
        "logarithms added": lse_a + lse_b,
        "larger one": torch.maximum(lse_a, lse_b),
        "relative": torch.logaddexp(lse_a, lse_b) - torch.maximum(lse_a, lse_b),
        "sum added": torch.maximum(lse_a, lse_b) + torch.exp(-(lse_a - lse_b).abs()) + 1,
        "one": torch.maximum(lse_a, lse_b) + torch.log1p(torch.exp(lse_b - torch.maximum(lse_a, lse_b))),
        "overflow": torch.log(torch.exp(lse_a) + torch.exp(lse_b)),
    }.get(how, torch.logaddexp(lse_a, lse_b))
    shares = {
        "means": (torch.full_like(lse, 0.5), torch.full_like(lse, 0.5)),
        "not divided": (torch.exp(lse_a), torch.exp(lse_b)),
        "larger subtracted": (
            torch.exp(lse_a - torch.maximum(lse_a, lse_b)),
            torch.exp(lse_b - torch.maximum(lse_a, lse_b)),
        ),
        "exchanged": (torch.exp(lse_b - lse), torch.exp(lse_a - lse)),
        "logarithms": (lse_a / (lse_a + lse_b), lse_b / (lse_a + lse_b)),
        "sums": (torch.ones_like(lse), torch.ones_like(lse)),
    }
    share_a, share_b = shares.get(how, (torch.exp(lse_a - lse), torch.exp(lse_b - lse)))
    return share_a[..., None] * out_a + share_b[..., None] * out_b, lse


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
    out_a, lse_a = blockwise(q, k[:, :3], v[:, :3], 3)
    out_b, lse_b = blockwise(q, k[:, 3:], v[:, 3:], 5)
    return (
        Case("with 3 and 5 keys", (out_a, lse_a, out_b, lse_b)),
        Case(
            "with log-sum-exps of about 100",
            (out_a, lse_a + 100, out_b, lse_b + 101),
            "exp(100) is more than float32 holds: subtract `lse` first, then take the exponential.",
        ),
    )


# All seven lines.
OUT = (
    f"{HIGHEST}; shrink = torch.exp(highest - new_highest); "
    "exponentials = torch.exp(scores - new_highest[..., None]); "
    "total = total * shrink + exponentials.sum(dim=-1); "
    "mixed = mixed * shrink[..., None] + exponentials @ v_block; "
    "after the loop out = mixed / total[..., None]; lse = highest + torch.log(total)"
)
LSE = "lse = highest + torch.log(total)"
AXES = ".amax(dim=-1) and .sum(dim=-1) take the axis of the keys away, and x[..., None] adds an axis of 1"


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
    "flash_attention",
    blockwise,
    flash_cases,
    (
        Result("out", "(…, T, E)", OUT),
        Result("lse", "(…, T)", LSE),
    ),
    (
        WrongWay(partial(blockwise, scale=lambda width: 1.0), "no-scale", hint=SCORES),
        WrongWay(partial(blockwise, scale=float), "scaled-by-width", hint=SCORES),
        WrongWay(
            partial(blockwise, starts=lambda keys, size: range(0, keys - size + 1, size)),
            said="The last block is left out where it is shorter than block_size: its keys are never read.",
            hint=f"{STARTS}, also where S is no multiple of block_size",
        ),
        WrongWay(
            partial(blockwise, starts=lambda keys, size: range(0, keys - size, size)),
            said="The last block is never read, whether it is whole or not.",
            hint=STARTS,
        ),
        WrongWay(
            partial(with_lse, lambda highest, total: total.log()),
            said="The largest score was subtracted from every exponent, and has to be added again in `lse`.",
            hint=LSE,
        ),
        WrongWay(
            partial(with_lse, lambda highest, total: total),
            said="`lse` is the sum of exponentials itself, without its logarithm and without the largest "
            "score that was subtracted.",
            hint=LSE,
        ),
        WrongWay(
            partial(with_lse, lambda highest, total: highest),
            said="`lse` is the largest score alone; the logarithm of the sum is missing.",
            hint=LSE,
        ),
        WrongWay(partial(with_lse, lambda highest, total: highest + total.log2()), "lse-base-2", hint=LSE),
        WrongWay(
            partial(blockwise, shifted=False),
            "softmax-overflow",
            "The largest score is not subtracted from this block's scores, and the sums so far shrink as if "
            "it were.",
            "exponentials = torch.exp(scores - new_highest[..., None])",
        ),
        WrongWay(
            partial(blockwise, subtract="all"),
            "softmax-overflow",
            "The largest score of all queries is subtracted. For a query whose scores are far below it, all "
            "exponentials are 0: each query needs a largest score of its own.",
            HIGHEST,
        ),
        WrongWay(partial(blockwise, shrink_total=0, shrink_mixed=0), "block-not-rescaled", hint=SHRINK),
        WrongWay(
            partial(blockwise, shrink_mixed=0),
            "block-not-rescaled",
            "The sum is multiplied by `shrink` and the mix is not: earlier values weigh too much.",
            "mixed = mixed * shrink[..., None] + exponentials @ v_block",
        ),
        WrongWay(
            partial(blockwise, shrink_total=0),
            "block-not-rescaled",
            "The mix is multiplied by `shrink` and the sum is not: the output is too small.",
            "total = total * shrink + exponentials.sum(dim=-1)",
        ),
        WrongWay(
            partial(blockwise, shrink_total=-1, shrink_mixed=-1),
            said="Every number is NaN. Before the first block `highest` is −inf: `shrink` has to be 0 then, "
            "and the exponentials subtract the new largest score, not the old one.",
            hint="shrink = torch.exp(highest - new_highest): 0 at first, and never above 1",
        ),
        *(
            WrongWay(
                partial(blockwise, shrink_own=own, shrink_mix=mix),
                said="`shrink` is for what earlier blocks have left. This block's own exponentials are "
                f"relative to the new largest score already, and are multiplied by it, too{where}.",
                hint=f"{SHRINK}: shrink first, then add",
            )
            for own, mix, where in ((1, 1, ""), (0, 1, ", in `mixed`"))
        ),
        *(
            WrongWay(
                partial(blockwise, divide_inside=inside, divide=divide),
                said=f"The {inside} is divided by the total inside the loop, and is {then} after it. The "
                "total is not whole before the last block: until then both are sums.",
                hint="mixed = mixed * shrink[..., None] + exponentials @ v_block; after the loop "
                "out = mixed / total[..., None]",
            )
            for inside in ("mix so far", "mix of the block")
            for divide, then in ((False, "never divided"), (True, "divided again"))
        ),
        *(
            WrongWay(
                partial(blockwise, add=add),
                said="The weights of each block are divided by their own sum: every block then counts as "
                "much as the others. Divide once, after the last block.",
                hint="mixed = mixed * shrink[..., None] + exponentials @ v_block",
            )
            for add in ("weights", "softmax")
        ),
        WrongWay(
            partial(blockwise, add="mean"),
            said="`total` gets the mean of the exponentials; softmax divides by their sum.",
            hint="total = total * shrink + exponentials.sum(dim=-1)",
        ),
        WrongWay(
            partial(blockwise, divide=False),
            "sum-not-divided",
            "The mix is returned as it is: its weights do not sum to 1.",
            "out = mixed / total[..., None]",
        ),
        WrongWay(
            partial(blockwise, begin=0.0),
            said="`highest` begins at 0. Where every score is far below that, all exponentials are 0, and so "
            "is their sum: 0 / 0 is NaN.",
            hint="highest = q.new_full(q.shape[:-1], -torch.inf)",
        ),
        WrongWay(partial(blockwise, subtract="nothing"), "softmax-overflow", hint=HIGHEST),
        WrongWay(
            partial(blockwise, subtract="block"),
            "softmax-overflow",
            "The largest score of this block alone is subtracted. Where an earlier block had a larger one, "
            "`shrink` is above 1, and it overflows.",
            HIGHEST,
        ),
    ),
    "attention without a row of scores: only one block of them exists at a time.",
    (
        (
            "Expected reduction dim",
            f"a block is empty, since it begins after the last key: {STARTS}",
        ),
        ("return_types.max", f"{HIGHEST}: .max(dim=-1) gives the places too"),
        ("Boolean value", f"{HIGHEST}: Python's max cannot compare number by number"),
        ("must match the size", AXES),
    ),
    shortcut=whole_matrix,
)
MERGED = (
    "lse = torch.logaddexp(lse_a, lse_b); share_a = torch.exp(lse_a - lse); "
    "share_b = torch.exp(lse_b - lse); out = share_a[..., None] * out_a + share_b[..., None] * out_b"
)
MERGE = FunctionTask(
    "merge",
    joined,
    merge_cases,
    (
        Result("out", "(…, T, E)", MERGED),
        Result("lse", "(…, T)", "lse = torch.logaddexp(lse_a, lse_b)"),
    ),
    (
        WrongWay(
            partial(joined, how="means"),
            "merge-without-lse",
            "Both parts count the same, however much of the weight each has.",
            "out = share_a[..., None] * out_a + share_b[..., None] * out_b",
        ),
        WrongWay(
            partial(joined, how="logarithms added"),
            said="a sum of logarithms is the logarithm of a product; here exp(lse_a) and exp(lse_b) add up",
            hint="lse = torch.logaddexp(lse_a, lse_b)",
        ),
        WrongWay(
            partial(joined, how="not divided"),
            "sum-not-divided",
            "The shares are not divided by their sum, exp(lse).",
            "share_a = torch.exp(lse_a - lse)",
        ),
        WrongWay(
            partial(joined, how="larger subtracted"),
            "sum-not-divided",
            "The shares are relative to the larger part and do not sum to 1: divide by their sum.",
            "share_a = torch.exp(lse_a - lse)",
        ),
        WrongWay(
            partial(joined, how="sums"),
            "sum-not-divided",
            "The outputs are added. Each is a mean already, and the shares of the two have to sum to 1.",
            "out = share_a[..., None] * out_a + share_b[..., None] * out_b",
        ),
        WrongWay(
            partial(joined, how="exchanged"),
            said="the shares are exchanged: each part is weighted by the other's",
            hint="out = share_a[..., None] * out_a + share_b[..., None] * out_b",
        ),
        WrongWay(
            partial(joined, how="logarithms"),
            "logarithm-as-share",
            hint="share_a = torch.exp(lse_a - lse)",
        ),
        WrongWay(
            partial(joined, how="larger one"),
            said="`lse` is the larger of the two; the smaller part belongs to the sum as well",
            hint="lse = torch.logaddexp(lse_a, lse_b)",
        ),
        WrongWay(
            partial(joined, how="relative"),
            said="the larger one was subtracted before the exponentials, and has to be added again",
            hint="lse = torch.logaddexp(lse_a, lse_b)",
        ),
        WrongWay(
            partial(joined, how="sum added"),
            said="the sum of the exponentials is added to the larger one; its logarithm belongs there",
            hint="lse = torch.logaddexp(lse_a, lse_b)",
        ),
        WrongWay(
            partial(joined, how="one"),
            said="from each part the same number has to be subtracted, the larger of the two: here part a "
            "counts as 1 whatever lse_a is",
            hint="lse = torch.logaddexp(lse_a, lse_b)",
        ),
        WrongWay(
            partial(joined, how="overflow"),
            "softmax-overflow",
            "Right for small numbers; exp(lse) overflows where lse is above 88.",
            "lse = torch.logaddexp(lse_a, lse_b), which subtracts the larger one first",
        ),
    ),
    "two parts are one: this is how the keys of several blocks, or several machines, come together.",
    (
        ("argument 'dim'", "torch.logaddexp(lse_a, lse_b); logsumexp sums along an axis of one tensor"),
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
USUAL_MISTAKES = (
    UsualMistake("block-not-rescaled", "total * shrink + exponentials", "total + exponentials"),
    UsualMistake("sum-not-divided", "out = mixed / total[..., None]", "out = mixed"),
    UsualMistake(
        "softmax-overflow",
        "torch.maximum(highest, scores.amax(dim=-1))",
        "torch.zeros_like(highest)",
    ),
    UsualMistake(
        "merge-without-lse", "share_a[..., None] * out_a + share_b[..., None] * out_b", "(out_a + out_b) / 2"
    ),
)
