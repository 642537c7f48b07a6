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
        plants=_softmax("-2"),
    ),
    Mistake(
        "softmax-over-heads",
        "with softmax over the heads",
        "The heads compete for each pair of tokens, and rows do not sum to 1.",
        "weights = torch.softmax(scores, dim=-1)",
        "`dim=1` on (B, H, T, S), and softmax without `dim` on four dimensions",
        ({"axis": 1},),
        plants={name: swap for name, swap in _softmax("1").items() if name != "head"},
    ),
    Mistake(
        "softmax-over-batch",
        "with softmax over the batch",
        "A sequence's output depends on the other items of its batch.",
        "weights = torch.softmax(scores, dim=-1)",
        "softmax without `dim` on three dimensions, which takes the first",
        ({"axis": 0},),
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
        plants=_weights("torch.softmax(torch.softmax(scores, dim=-1), dim=-1)"),
    ),
    Mistake(
        "softmax-missing",
        "without softmax: the scores themselves are the weights",
        "Rows do not sum to 1, weights are negative, and −inf in the mask makes NaN.",
        "weights = torch.softmax(scores, dim=-1)",
        "a line lost while a mask was added",
        tuple(
            {"normalise": "none"} | mask | scale
            for mask in ({}, {"masking": "multiply"}, {"masking": "after"})
            for scale in ({}, {"scale": lambda n: 1.0})
        ),
        plants=_weights("scores.masked_fill(~allowed, 0.0)"),
    ),
    Mistake(
        "sum-not-divided",
        "with exp(scores − maximum) that is never divided by its sum",
        "Rows do not sum to 1: a row of equal scores has a weight of 1 for every key.",
        "out = out / total at the end, or torch.softmax",
        "the last line of an online softmax forgotten",
        ({"normalise": "not divided"},),
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
            for how in ("stale output", "stale sum")
            for n in (1, 2, 3, 4, 8, 16, 32, 64, 128)
        ),
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
        plants={
            "function": ((_FUNCTION, "    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
            "head": ((_MODULE, "        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
            "layer": ((_MODULE, "        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)\n"),),
        },
    ),
)
