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
        "Scores grow with the head's width, so softmax saturates: wide heads are nearly one-hot from the "
        "start, and learn worse.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        "hand-written layers that follow a diagram without its footnote",
        ({"scale": lambda n: 1.0},),
        symptom="Narrow heads train as well as with the scale, and nothing warns you. Wide heads are nearly "
        "one-hot from the first step on: some trainings are slow, and some stay at a worse loss.",
        why="The dot product of two random vectors of width D has a standard deviation of √D times that "
        "of one product: with D = 64 the scores are eight times too large. Softmax of large scores "
        "is nearly one-hot. Gradients do not vanish there; what reaches the queries is even larger.",
        test="agrees-with-pytorch",
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
        symptom="It trains, more slowly. Maps look washed out, and the first layers stay close to "
        "uniform for longer.",
        why="Dividing by √D twice is dividing by D, so scores that should have a standard deviation of "
        "1 have one of 1/√D. Training can make queries and keys longer to undo it; loaded weights "
        "cannot.",
        test="agrees-with-pytorch",
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
        symptom="It trains, more slowly. Maps look washed out, and weights that were trained elsewhere "
        "give blurred attention.",
        why="The scale keeps the standard deviation of the scores at 1, and that grows with √D, not "
        "with D. Dividing by D makes them √D times too small, and softmax of small scores is nearly "
        "uniform.",
        test="agrees-with-pytorch",
        plants=_planted("scores = scores / D", "scores = scores / D"),
    ),
    Mistake(
        "scale-from-model-width",
        "with the scale from the model's width instead of the head's",
        "Attention is too flat by √H: the more heads, the flatter each of them.",
        "take the width of q after the heads are split: scale = q.shape[-1] ** -0.5",
        "`C ** -0.5` in lectures, for a head of width head_size",
        ({"scale": lambda n: float(n.C**-0.5)},),
        symptom="It trains almost as well, so the loss does not tell. Loaded weights give maps that are "
        "flatter than the original's, the more so the more heads there are.",
        why="Each head's dot product is a sum over the D channels of that head, not over the H · D "
        "channels of the model. The model's width makes the scores √H times too small.",
        test="agrees-with-pytorch",
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
        symptom="Wide heads have one-hot rows at the start, whichever the text. Training is slower, "
        "some runs stay at a worse loss, and half precision may overflow.",
        why="Multiplying where you meant to divide makes the scores D times too large: 64 times for a "
        "head of width 64.",
        test="agrees-with-pytorch",
        plants=_planted("scores = scores * math.sqrt(D)", "scores = scores * D**0.5"),
    ),
    Mistake(
        "scale-by-length",
        "with a scale from the number of keys instead of the head's width",
        "The attention within a text changes as the text grows longer.",
        "take the last axis: q.shape[-1] ** -0.5, not k.shape[-2]",
        "`k.size(1)` or `k.shape[-2]` where `k.size(-1)` was meant",
        ({"scale": lambda n: float(n.S**-0.5)},),
        symptom="Nothing at the length you train with. The same text gets flatter attention when it "
        "stands in a longer one, and the loss rises with the length.",
        why="√S has nothing to do with the spread of a dot product over D channels. It agrees with √D "
        "only where text and head happen to be of the same size.",
        test="agrees-with-pytorch",
        plants=_planted("scores = scores / math.sqrt(S)", "scores = scores / T**0.5"),
    ),
    Mistake(
        "constant-scale",
        "with a constant scale that does not depend on the head's width",
        "It is right at one width, and too sharp or too flat at every other.",
        "compute it from the tensor: scale = q.shape[-1] ** -0.5",
        "`/ 8.0` copied from a model with heads of width 64, or a scale kept from another configuration",
        symptom="All tests at one width pass. In a model with another head width the maps are too sharp "
        "or too flat, and loaded weights give a higher loss.",
        why="1/8 is 1/√64. The scale has to follow the width of the tensor that it is applied to.",
        test="agrees-with-pytorch",
        plants=_planted("scores = scores / 8.0", "scores = scores * 0.125"),
    ),
    Mistake(
        "scale-ignored",
        "without the scale that was requested",
        "A model with a scale of its own, as Gemma, Granite or one with muP, gets 1/√D.",
        "scale = D**-0.5 if scale is None else scale",
        "an argument that is accepted and not used; one code path that does not pass it on",
        symptom="Right with the default. Loaded weights of a model with another scale give maps that are too "
        "sharp or too flat, and other output.",
        why="The argument is accepted, so the call does not fail, and the scale of the default is used.",
        test="a-scale-is-used",
        mended={
            "function": (
                ("softcap=None):", "softcap=None, scale=None):"),
                (_FUNCTION, "    scores = scores * (D**-0.5 if scale is None else scale)\n"),
            )
        },
        plants={
            "function": (
                ("softcap=None):", "softcap=None, scale=None):"),
                (_FUNCTION, "    scores = scores * D**-0.5\n"),
            )
        },
    ),
)
