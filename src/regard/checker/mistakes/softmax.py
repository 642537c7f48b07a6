"""Mistakes of the softmax: its axis, and how it is computed."""

from regard.checker.mistakes.mistake import Mistake

_FUNCTION = "    weights = torch.softmax(scores, dim=-1)\n"
_MODULE = "        weights = torch.softmax(scores, dim=-1)\n"


def _weights(code: str) -> dict[str, tuple[tuple[str, str], ...]]:
    return {
        "function": ((_FUNCTION, f"    weights = {code}\n"),),
        "head": ((_MODULE, f"        weights = {code}\n"),),
        "layer": ((_MODULE, f"        weights = {code}\n"),),
    }


def _softmax(dim: str) -> dict[str, tuple[tuple[str, str], ...]]:
    return _weights(f"torch.softmax(scores, dim={dim})")


SOFTMAX_MISTAKES = (
    Mistake(
        "softmax-over-queries",
        "with softmax over the query axis",
        "Each key's weights sum to 1 over the queries, so every query depends on later ones: the training "
        "loss is low, and generation fails.",
        "weights = torch.softmax(scores, dim=-1)",
        "`dim=-2`, or `dim=1` on (B, T, S)",
        ({"axis": -2},),
        symptom="The training loss is better than it can be, and what the model writes is garbage: "
        "alone, on a prefix, its loss is far above that of guessing. In the map, columns sum to "
        "1 and rows do not.",
        why="Softmax over the queries divides each weight by a sum over all queries of a key, later "
        "ones included. So every weight of an early row changes with the text that comes after it, "
        "and the model learns to read that.",
        test="rows-sum-to-one",
        plants=_softmax("-2"),
    ),
    Mistake(
        "softmax-over-heads",
        "with softmax over the heads",
        "The heads compete for each pair of tokens, and rows do not sum to 1.",
        "weights = torch.softmax(scores, dim=-1)",
        "`dim=1` on (B, H, T, S), and softmax without `dim` on four dimensions",
        ({"axis": 1},),
        symptom="With a causal mask the loss is NaN at step 0. Without a mask it trains, and rows of "
        "the map sum to anything but 1.",
        why="A hidden pair has −inf in every head, and softmax over nothing but −inf is NaN. Where the "
        "pair is visible, each head gets a share of it, so one head's row has no fixed sum.",
        test="rows-sum-to-one",
        plants={name: swap for name, swap in _softmax("1").items() if name != "head"},
    ),
    Mistake(
        "softmax-over-batch",
        "with softmax over the batch",
        "A sequence's output depends on the other items of its batch.",
        "weights = torch.softmax(scores, dim=-1)",
        "softmax without `dim` on three dimensions, which takes the first",
        ({"axis": 0},),
        symptom="With a causal mask the loss is NaN at step 0. Without a mask the output of a text "
        "changes with its neighbours in the batch, and a batch of one gives weights of 1 "
        "everywhere.",
        why="The first axis is the batch. A hidden pair has −inf in every item, and softmax over "
        "nothing but −inf is NaN.",
        test="an-item-alone-gives-the-same",
        plants=_softmax("0"),
    ),
    Mistake(
        "softmax-twice",
        "with softmax applied twice",
        "The second softmax is of numbers between 0 and 1, so every row is nearly uniform, and hidden keys "
        "are visible again.",
        "weights = torch.softmax(scores, dim=-1), once",
        "a softmax in a helper and another one behind it",
        ({"normalise": "twice"},),
        symptom="Maps are almost uniform however long you train, and the upper triangle is not zero. "
        "The loss falls slowly, and what the model writes is worse than its loss.",
        why="The first softmax gives numbers between 0 and 1; the second one makes of them weights "
        "whose ratio is at most e. A hidden key has 0 after the first softmax, and exp(0) = 1 in "
        "the second.",
        test="future-does-not-matter",
        plants=_weights("torch.softmax(torch.softmax(scores, dim=-1), dim=-1)"),
    ),
    Mistake(
        "softmax-missing",
        "without softmax: the scores themselves, or the logarithms of weights, are the weights",
        "Rows do not sum to 1, weights are negative, and −inf in the mask makes NaN.",
        "weights = torch.softmax(scores, dim=-1)",
        "a line lost while a mask was added",
        (
            *(
                {"normalise": "none"} | mask | scale
                for mask in ({}, {"masking": "multiply"}, {"masking": "after"})
                for scale in ({}, {"scale": lambda n: 1.0})
            ),
            {"normalise": "log"},
        ),
        symptom="The loss looks healthy on short texts. Outputs grow with the length of the text, and "
        "the map has negative numbers.",
        why="Without softmax a weight is a raw score: nothing keeps it positive, and nothing makes a "
        "row sum to 1. Linear attention can be trained, but it is another model.",
        test="rows-sum-to-one",
        plants=_weights("scores.masked_fill(~allowed, 0.0)"),
    ),
    Mistake(
        "sum-not-divided",
        "with exp(scores − maximum) that is never divided by its sum",
        "Rows do not sum to 1: a row of equal scores has a weight of 1 for every key.",
        "out = out / total at the end, or torch.softmax",
        "the last line of an online softmax forgotten",
        ({"normalise": "not divided"},),
        symptom="The loss looks healthy. The largest weight of every row is exactly 1, and outputs grow "
        "with the number of keys.",
        why="exp(score − maximum) is the numerator of softmax. The division makes the row sum to 1, and "
        "in an online softmax it comes last, where it is easily forgotten.",
        test="rows-sum-to-one",
        plants=_weights("(scores - scores.amax(-1, keepdim=True)).exp()"),
    ),
    Mistake(
        "block-not-rescaled",
        "with an online softmax that does not rescale earlier blocks to a new maximum",
        "Right as long as the first block holds the largest score; otherwise earlier keys weigh too much.",
        "rescale both by exp(m − m_new) before a block is added: the output, and the sum",
        "one of the two lines of an online softmax without its factor",
        tuple(
            {"normalise": how, "block": n}
            for how in ("stale output", "stale sum", "stale")
            for n in (1, 2, 3, 4, 8, 12, 16, 32, 64, 128)
        ),
        symptom="Right in tests with few keys, or where the first block holds the largest score; "
        "slightly wrong otherwise. Row sums are above 1 in some rows only.",
        why="An online softmax measures each block against the largest score so far. When a later block "
        "raises it, everything summed before has to be multiplied by exp(old maximum − new "
        "maximum), or it counts too much.",
        test="rows-sum-to-one",
        plants={
            "function": (
                (
                    _FUNCTION,
                    "    highest = torch.stack([block.amax(-1) for block in scores.split(2, -1)], -1)\n"
                    "    highest = highest.cummax(-1).values.repeat_interleave(2, -1)[..., :S]\n"
                    "    total = (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)\n"
                    "    weights = (scores - highest).exp() / total\n",
                ),
            )
        },
    ),
    Mistake(
        "scale-after-softmax",
        "with the scale applied to the weights instead of the scores",
        "Softmax saturates as without a scale, and rows sum to 1/√D instead of 1.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), then softmax",
        "parentheses around softmax(q @ k.T) instead of around the scaled scores",
        ({"normalise": "scaled", "scale": lambda n: 1.0},),
        symptom="Rows of the map sum to 1/√D, and wide heads are nearly one-hot. It trains, more slowly.",
        why="Softmax sees scores that are √D times too large, and what comes out is divided by √D. "
        "Scaling before softmax changes how sharp a row is; scaling after it changes only how loud.",
        test="rows-sum-to-one",
        plants={
            "function": (
                ("    scores = scores / math.sqrt(D)\n", ""),
                (_FUNCTION, "    weights = torch.softmax(scores, dim=-1) / math.sqrt(D)\n"),
            ),
            "head": (
                ("        scores = scores / D**0.5\n", ""),
                (_MODULE, "        weights = torch.softmax(scores, dim=-1) / D**0.5\n"),
            ),
            "layer": (
                ("        scores = scores / D**0.5\n", ""),
                (_MODULE, "        weights = torch.softmax(scores, dim=-1) / D**0.5\n"),
            ),
        },
    ),
    Mistake(
        "softmax-overflow",
        "with exp(scores) / sum, without subtracting the maximum first",
        "Scores above 88 overflow float32 (11 in float16), and inf / inf is NaN.",
        "weights = torch.softmax(scores, dim=-1), which subtracts each row's maximum",
        "softmax written out by hand",
        ({"normalise": "exp"},),
        symptom="All is well for a while, then the loss is suddenly NaN, sooner in half precision. "
        "Small tests never show it.",
        why="exp(89) is inf in float32, and inf / inf is NaN. Subtracting each row's maximum first "
        "changes nothing in exact arithmetic and keeps every exponent at 0 or below.",
        test="large-scores-are-finite",
        plants={
            "function": ((_FUNCTION, "    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
            "head": ((_MODULE, "        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
            "layer": ((_MODULE, "        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
        },
    ),
)
