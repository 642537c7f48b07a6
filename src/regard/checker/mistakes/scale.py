"""Mistakes of the scale, by which the scores are multiplied before softmax."""

from regard.checker.mistakes.mistake import Mistake

_FUNCTION, _HEAD = "    scores = scores / math.sqrt(D)\n", "        scores = scores / D**0.5\n"


def _planted(function: str, module: str) -> dict[str, tuple[tuple[str, str], ...]]:
    return {
        "function": ((_FUNCTION, f"    {function}\n"),),
        "head": ((_HEAD, f"        {module}\n"),),
        "layer": ((_HEAD, f"        {module}\n"),),
    }


SCALE_MISTAKES = (
    Mistake(
        "no-scale",
        "without the scale 1/√D on the scores",
        "Scores grow with the head's width, and softmax puts nearly all weight on one key: it learns, but worse.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        "hand-written layers that follow a diagram without its footnote",
        ({"scale": lambda n: 1.0},),
        plants=_planted("", ""),
    ),
    Mistake(
        "scaled-twice",
        "with the scores scaled twice, by 1/D in total",
        "Attention is too flat: every row is closer to the mean of the values than it should be.",
        "divide by √D once: either scale q (or the scores) yourself, or leave it to "
        "F.scaled_dot_product_attention",
        "q scaled by hand and then passed to F.scaled_dot_product_attention, which scales too",
        ({"scale": lambda n: 1.0 / n.D},),
        plants=_planted(
            "scores = scores / math.sqrt(D) / math.sqrt(D)", "scores = (scores / D**0.5) * D**-0.5"
        ),
    ),
    Mistake(
        "scaled-by-width",
        "with the scores divided by D instead of √D",
        "Attention is too flat: every row is closer to the mean of the values than it should be.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        "the square root forgotten between the formula and the code",
        ({"scale": lambda n: 1.0 / n.D},),
        plants=_planted("scores = scores / D", "scores = scores / D"),
    ),
    Mistake(
        "scale-from-model-width",
        "with the scale from the model's width instead of the head's",
        "Attention is too flat by √H: the more heads, the flatter each of them.",
        "take the width of q after the heads are split: scale = q.shape[-1] ** -0.5",
        "`C ** -0.5` in lectures, for a head of width head_size",
        ({"scale": lambda n: float(n.C**-0.5)},),
        plants={
            "head": ((_HEAD, "        scores = scores * C**-0.5\n"),),
            "layer": ((_HEAD, "        scores = scores / (H * D) ** 0.5\n"),),
            "function": ((_FUNCTION, "    scores = scores / math.sqrt(D * q.shape[1])\n"),),
        },
    ),
    Mistake(
        "scale-multiplied",
        "with the scores multiplied by √D instead of divided",
        "Softmax saturates: each query attends to a single key.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        "a `scale` defined as √D in one place and used as a factor in another",
        ({"scale": lambda n: float(n.D**0.5)},),
        plants=_planted("scores = scores * math.sqrt(D)", "scores = scores * D**0.5"),
    ),
    Mistake(
        "scale-by-length",
        "with a scale from the number of keys instead of the head's width",
        "The attention within a text changes as the text grows longer.",
        "take the last axis: q.shape[-1] ** -0.5, not k.shape[-2]",
        "`k.size(1)` or `k.shape[-2]` where `k.size(-1)` was meant",
        ({"scale": lambda n: float(n.S**-0.5)},),
        plants=_planted("scores = scores / math.sqrt(S)", "scores = scores / T**0.5"),
    ),
    Mistake(
        "constant-scale",
        "with a constant scale that does not depend on the head's width",
        "It is right at one width, and too sharp or too flat at every other.",
        "compute it from the tensor: scale = q.shape[-1] ** -0.5",
        "`/ 8.0` copied from a model with heads of width 64, or a scale kept from another configuration",
        plants=_planted("scores = scores / 8.0", "scores = scores * 0.125"),
    ),
)
