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


NUMBER_MISTAKES = (
    Mistake(
        "weights-detached",
        "through whose weights no gradient flows",
        "Query and key projections never learn, so attention stays as it was initialised.",
        "no .detach(), .data, .numpy() or torch.no_grad() between the scores and the output",
        "weights that were detached for plotting and then used",
        ({"detach": "weights"},),
        symptom="The loss falls, but stops high: maps are the same at the end of training as at the "
        "start. The gradients of the query and key projections are None.",
        why="Queries and keys act on the output through the weights alone. Cut there, nothing tells "
        "them how to change.",
        test="every-parameter-gets-a-gradient",
        plants=_weights("torch.softmax(scores, dim=-1).detach()"),
    ),
    Mistake(
        "precision-lost",
        "computed in a lower precision than its inputs have",
        "Errors are thousands of times PyTorch's own, at every position.",
        "keep the inputs' dtype, and compute softmax in float32",
        "`.half()` or an autocast left on inside forward",
        symptom="The loss curve looks the same. Outputs differ from a float32 reference in the third digit.",
        why="bfloat16 keeps eight bits of a number: steps of up to 0.8 % between neighbours. Rounded "
        "once inside forward, that is lost for good, whatever the dtype of the output says.",
        test="agrees-with-pytorch",
        plants=_weights("torch.softmax(scores.bfloat16(), dim=-1).to(scores.dtype)"),
    ),
    Mistake(
        "lse-base-2",
        "with the log-sum-exp in base 2 instead of base e",
        "Weights recomputed as exp(score − lse) do not sum to 1.",
        "lse * math.log(2), or logsumexp of the natural scores",
        "fused kernels that use exp2 internally",
        symptom="The output is right. Backward passes, merges of partial results and maps that use the "
        "lse are wrong.",
        why="exp2 is faster than exp on a GPU, so that kernels multiply the scores by 1/ln 2. The lse "
        "that comes out is larger by that factor, unless it is converted back.",
        test="lse-is-natural",
        mended={
            "function": (
                ("    return weights @ v\n", "    return weights @ v, torch.logsumexp(scores, -1)\n"),
            )
        },
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
