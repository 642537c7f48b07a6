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
        "The same input gives a different output each time, and the loss in evaluation is that of "
        "training mode.",
        "F.dropout(w, p, training=self.training), or "
        "F.scaled_dot_product_attention(…, dropout_p=p if self.training else 0.0)",
        "F.scaled_dot_product_attention's dropout_p and F.dropout's default, which ignore eval()",
        symptom="Two evaluations of the same text give two losses, both worse than they should be. "
        "Generated text differs from run to run even if you always take the likeliest token.",
        why="model.eval() reaches modules. F.dropout is on unless you pass training=, and dropout_p of "
        "F.scaled_dot_product_attention is always on.",
        test="eval-is-repeatable",
        plants=_both((_DROP, "        weights = F.dropout(weights, self.dropout.p)\n")),
    ),
    Mistake(
        "dropout-on-scores",
        "with dropout on the scores instead of the weights",
        "A dropped score is 0, not −inf, so its token keeps some weight; a masked score times 0 is NaN.",
        "weights = dropout(softmax(scores)), not softmax(dropout(scores))",
        "dropout one line too early",
        symptom="NaN in the first training step with a causal mask. Without one it trains with noise on "
        "the scores instead of dropout, and eval is right.",
        why="A score of 0 is an ordinary score, so that a dropped token stays visible; and 0 · −inf is NaN.",
        test="dropout-drops-whole-tokens",
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
        symptom="None: it is a regularisation too, and rows of the map keep their sum in training.",
        why="Dropout on the weights makes a query do without a token. Dropout on the output makes the "
        "next layer do without a channel.",
        test="dropout-drops-whole-tokens",
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
        symptom="Outputs of attention are larger in evaluation than in training, by 1/(1 − p) on average.",
        why="With p = 0.1 nine tenths of the weight are left on average. Dividing by 0.9 keeps the mean "
        "as it is without dropout.",
        test="dropout-drops-whole-tokens",
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
        "Attention is not regularised, and the dropout argument has no effect.",
        "weights = self.dropout(weights) between softmax and weights @ v",
        "a layer created in __init__ and forgotten in forward",
        symptom="Another dropout rate gives exactly the same loss curve.",
        why="A module that is created and never called is no error in PyTorch.",
        test="dropout-drops-whole-tokens",
        plants=_both((_DROP, "")),
    ),
    Mistake(
        "dropout-rate-ignored",
        "with dropout at another rate than the one that was set",
        "The model is regularised far more, or far less, than its configuration says.",
        "F.dropout(weights, self.dropout.p, training=self.training)",
        "F.dropout called without p, which is 0.5 then, or a rate that is written into the layer",
        symptom="A small dropout trains as badly as a large one, and another dropout rate gives exactly the "
        "same loss curve.",
        why="F.dropout's p has a default of 0.5. The rate that the constructor stored is one that forward "
        "has to pass.",
        test="dropout-has-its-rate",
        plants=_both((_DROP, "        weights = F.dropout(weights, training=self.training)\n")),
        unseen_because="Dropout is random: what counts is how much it drops.",
    ),
    Mistake(
        "dropout-rate-inverted",
        "with the dropout rate taken as the probability to keep a weight",
        "With a rate of 0.1 nine tenths of the weights are dropped, and the rest is ten times as large.",
        "nn.Dropout(p) drops with probability p; written by hand, keep = torch.rand_like(weights) >= p",
        "TensorFlow's keep_prob, or a random mask whose comparison is turned round",
        symptom="Training hardly learns with a small rate, and learns better the larger the rate is. Eval is "
        "right.",
        why="PyTorch's p is the probability to drop a number, and keep_prob is 1 − p. At 0.5, which many "
        "tests use, they are the same.",
        test="dropout-has-its-rate",
        plants=_both(
            (_DROP, "        weights = F.dropout(weights, 1 - self.dropout.p, training=self.training)\n")
        ),
        unseen_because="Dropout is random: what counts is how much it drops.",
    ),
)
