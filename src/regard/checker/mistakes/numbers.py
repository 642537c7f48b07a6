"""Mistakes of numbers: gradients, precision, and the log-sum-exp."""

from regard.checker.mistakes.mistake import Mistake

_FUNCTION = "    weights = torch.softmax(scores, dim=-1)\n"
_MODULE = "        weights = torch.softmax(scores, dim=-1)\n"


def _weights(code: str) -> dict[str, tuple[tuple[str, str], ...]]:
    return {
        "function": ((_FUNCTION, f"    weights = {code}\n"),),
        "head": ((_MODULE, f"        weights = {code}\n"),),
        "layer": ((_MODULE, f"        weights = {code}\n"),),
    }


NUMBERS = (
    Mistake(
        "weights-detached",
        "through whose weights no gradient flows",
        "Queries and keys never learn: where to look stays as it was drawn at random.",
        "no .detach(), .data, .numpy() or torch.no_grad() between the scores and the output",
        "weights detached for plotting, and used afterwards",
        ({"detach": "weights"},),
        plants=_weights("torch.softmax(scores, dim=-1).detach()"),
    ),
    Mistake(
        "precision-lost",
        "computed in a lower precision than its inputs have",
        "Errors a thousand times PyTorch's own, in every position.",
        "keep the inputs' dtype, and softmax in float32",
        "`.half()` or an autocast left on inside forward",
        plants=_weights("torch.softmax(scores.bfloat16(), dim=-1).to(scores.dtype)"),
    ),
    Mistake(
        "lse-base-2",
        "with the log-sum-exp in base 2 where the natural one is expected",
        "Weights rebuilt as exp(score − lse) do not sum to 1.",
        "lse * math.log(2), or logsumexp of the natural scores",
        "fused kernels that work with exp2 inside",
        plants={
            "function": (
                (
                    "    return weights @ v\n",
                    "    return weights @ v, torch.logsumexp(scores, -1) / math.log(2)\n",
                ),
            )
        },
    ),
)
