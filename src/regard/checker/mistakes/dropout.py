"""Mistakes of dropout: when it acts, on what, and with which factor."""

from regard.checker.mistakes.mistake import Mistake

_DROP = "        weights = self.dropout(weights)\n"
_SOFTMAX = "        weights = torch.softmax(scores, dim=-1)\n"


def _both(*swaps: tuple[str, str]) -> dict[str, tuple[tuple[str, str], ...]]:
    return {"head": swaps, "layer": swaps}


DROPOUT_MISTAKES = (
    Mistake(
        "dropout-in-eval",
        "with dropout active in eval mode",
        "The same input gives a different output each time, and evaluation underestimates the model.",
        "F.dropout(w, p, training=self.training), or "
        "F.scaled_dot_product_attention(…, dropout_p=p if self.training else 0.0)",
        "F.scaled_dot_product_attention's dropout_p and F.dropout's default, which ignore eval()",
        plants=_both((_DROP, "        weights = F.dropout(weights, self.dropout.p)\n")),
    ),
    Mistake(
        "dropout-on-scores",
        "with dropout on the scores instead of the weights",
        "A dropped score is 0, not −inf, so its token keeps some weight; a masked score times 0 is NaN.",
        "weights = dropout(softmax(scores)), not softmax(dropout(scores))",
        "dropout one line too early",
        plants=_both(
            (_DROP, ""), (_SOFTMAX, "        weights = torch.softmax(self.dropout(scores), dim=-1)\n")
        ),
    ),
    Mistake(
        "dropout-on-output",
        "with dropout on the mixed values instead of the weights",
        "It drops channels of the output instead of tokens, which is another regularisation.",
        "weights = self.dropout(weights) before weights @ v",
        "dropout one line too late",
        plants=_both(
            (_DROP, ""), ("        out = weights @ v\n", "        out = self.dropout(weights @ v)\n")
        ),
        unseen_because="Dropout is random: what counts is which numbers it drops.",
    ),
    Mistake(
        "dropout-not-rescaled",
        "with dropped weights and the others not scaled by 1/(1 − p)",
        "Outputs in training are smaller than in eval by a factor of 1 − p.",
        "nn.Dropout, or keep / (1 - p)",
        "dropout written by hand with a random mask",
        plants=_both(
            (
                _DROP,
                "        if self.training:\n"
                "            weights = weights * (torch.rand_like(weights) >= self.dropout.p)\n",
            )
        ),
    ),
    Mistake(
        "dropout-never-acts",
        "with a dropout that never acts, not even in training",
        "The model overfits, and the dropout argument has no effect.",
        "weights = self.dropout(weights) between softmax and weights @ v",
        "a layer created in __init__ and forgotten in forward",
        plants=_both((_DROP, "")),
    ),
)
