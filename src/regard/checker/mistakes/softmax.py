"""Mistakes of the softmax: its axis, and how it is computed."""

from regard.checker.mistakes.mistake import Mistake

_FUNCTION = "    weights = torch.softmax(scores, dim=-1)\n"
_MODULE = "        weights = torch.softmax(scores, dim=-1)\n"


def _softmax(dim: str) -> dict[str, tuple[tuple[str, str], ...]]:
    return {
        "function": ((_FUNCTION, f"    weights = torch.softmax(scores, dim={dim})\n"),),
        "head": ((_MODULE, f"        weights = torch.softmax(scores, dim={dim})\n"),),
        "layer": ((_MODULE, f"        weights = torch.softmax(scores, dim={dim})\n"),),
    }


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
