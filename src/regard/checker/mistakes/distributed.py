"""Mistakes of attention on several processes, each of which holds a part of the sequence.

They are recognised by `checker.distributed`, which predicts the wrong outputs from the whole inputs.
"""

from regard.checker.mistakes.mistake import Mistake

_EXCHANGE = "            k, v = exchange(k, group), exchange(v, group)\n"
_POSITIONS = "        at = rank * T + torch.arange(T)[:, None]\n"
_MERGE = """\
        merged = torch.logaddexp(lse, block_lse)
        out = torch.exp(lse - merged) * out + torch.exp(block_lse - merged) * block
        lse = merged
"""
_GATHER = "    parts = list(received.unbind(0))\n"

DISTRIBUTED_MISTAKES = (
    Mistake(
        "stale-ring-step",
        "in which a step of the ring uses the keys or values of an earlier step",
        "A rank sees some keys twice and others never: long texts are read in pieces.",
        "wait for the transfer of keys and of values before the next step reads them",
        "an exchange that is started and not awaited, or of which only the keys are kept",
        symptom="Right on one process. On several, some keys count twice and others never; a causal "
        "mask hides part of it.",
        why="Keys and values travel separately around the ring. If one of them stays behind, scores and "
        "values of different ranks are combined.",
        test="ranks-agree-with-one-process",
        plants={"ring": ((_EXCHANGE, "            v = exchange(v, group)\n"),)},
    ),
    Mistake(
        "causal-offset-by-rank",
        "in which the causal mask ignores where a rank's tokens stand in the sequence",
        "Every rank but the first hides too much, or sees its future.",
        "compare global positions: rank * T + i for queries, source * T + j for keys",
        "a mask made with tril(T, T) on each rank, as if its tokens were the first",
        symptom="Right on rank 0. The others see too little of the text before them, or their own future.",
        why="Token i of rank r stands at position r · T + i. A mask from local indices takes every rank "
        "for the first.",
        test="ranks-agree-with-one-process",
        plants={"ring": ((_POSITIONS, "        at = torch.arange(T)[:, None]\n"),)},
    ),
    Mistake(
        "merge-without-lse",
        "in which the partial outputs are averaged instead of weighted by their log-sum-exp",
        "Each rank's or block's keys count the same, however well they match the query.",
        "weight each partial output by exp(lse − total), where total = logaddexp of all lse",
        "`out = out + block`, divided by the number of steps at the end",
        tuple({"normalise": "mean", "block": n} for n in (2, 4, 8, 12, 16, 32, 64, 128)),
        symptom="Right on one process, or in one block. On several, the output is a mean of means, "
        "blurred towards keys that hardly match.",
        why="Each partial output is normalised by its own sum. The log-sum-exp says how large that sum "
        "was, and without it a rank with one good match counts no more than one with none.",
        test="ranks-agree-with-one-process",
        plants={"ring": ((_MERGE, "        out, lse = out + block / n, lse\n"),)},
    ),
    Mistake(
        "gather-order",
        "in which the parts of the ranks are put together in the wrong order",
        "Tokens or heads get the output of others; without a mask part of it goes unnoticed.",
        "concatenate in the order of the ranks, along the axis that was scattered",
        "the received list reversed, or a reshape that puts the axis of ranks behind that of the tokens",
        symptom="Without a mask the maps look plausible and the tokens are in the wrong places; the "
        "loss is that of a text read in another order.",
        why="all_to_all returns one piece for each rank, in the order of the ranks. Joined in another "
        "order, or along another axis, the pieces are right and their places are not.",
        test="ranks-agree-with-one-process",
        plants={"ulysses": ((_GATHER, "    parts = list(received.unbind(0))[::-1]\n"),)},
    ),
)
