"""What the judges of lessons 2 to 4 share: a module of the form `forward(x) -> (out, weights)`.

What learners usually forget is answered in a sentence, the rest is for the checker. Then the module gets the
projections of the running example, and its weights there have to be the right ones, digit for digit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.learn.judges.common.first_run import OutputShape, first_run
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import TOLERANCE, is_equal, largest_difference
from regard.learn.judges.common.verdicts import (
    Variant,
    attend,
    check_attention,
    example_picture,
    reject_variants,
)
from regard.learn.lesson import NotDoneError, Outcome, Trial
from regard.stages.example import WK, WQ, WV, X

Weigh = Callable[[Tensor, Tensor], Tensor]  # the weights (…, T, T) of queries and keys (…, T, D)

B, T, D_MODEL, HEAD_DIM = 2, 5, 8, 6  # no two alike, so that no axis can be mistaken for another
MAX_SEQ_LEN = 16
TOKENS = torch.randn(B, T, D_MODEL, generator=torch.Generator().manual_seed(0))
SIZES = {"d_model": D_MODEL, "head_dim": HEAD_DIM}
TRIAL = Trial((TOKENS,), SIZES)
PROJECTIONS = {"W_q": WQ, "W_k": WK, "W_v": WV}


def sizes_of(cls: Any, d_model: int = D_MODEL, head_dim: int = HEAD_DIM) -> dict[str, int]:
    """Return the arguments of the learner's class; that of lesson 4 has a longest length, too."""
    sizes = {"d_model": d_model, "head_dim": head_dim, "max_seq_len": MAX_SEQ_LEN}
    # A function has another signature, and is told below that a class is expected.
    taken = inspect.signature(cls).parameters if inspect.isclass(cls) else ()
    return {size: sizes[size] for size in sizes if size in taken or size != "max_seq_len"}


def judge_self_attention(
    name: str,
    cls: Any,
    weigh: Weigh,
    done: str,
    **options: Any,
) -> Outcome:
    """Judge a class of modules that give `(out, weights)`.

    Arguments:
        name: of the task.
        cls: the learner's class.
        weigh: the right weights of queries and keys.
        done: what to say if it is right.
        options: of `check_attention`: `lesson`, and keyword arguments of `regard.check`.
    """
    check_form(name, cls)
    _check_values(cls, weigh)
    _check_weights(cls, weigh)
    outcome = check_attention(name, cls, done, init=sizes_of(cls), **options)
    if outcome.status != "done":
        return _with_both_scales(outcome, cls) if outcome.mistake else _describe_unknown(outcome, cls)
    weights = example_weights(cls)
    difference = largest_difference(weights, weigh(X @ WQ, X @ WK))
    if difference > TOLERANCE:
        message = (
            f"it is right for d_model {D_MODEL} and head_dim {HEAD_DIM}; with the six tokens and projections "
            f"of the lesson, {WQ.shape[0]} and {WQ.shape[1]}, the weights differ by up to {difference:.2g}"
        )
        raise NotDoneError(message, hint="take every size from the tensors, such as k.shape[-1]")
    return replace(outcome, picture=example_picture(["your weights"], [weights]))


def check_form(name: str, cls: Any) -> None:
    """Raise what keeps the class from being run and compared at all."""
    out, weights = OutputShape((B, T, HEAD_DIM), "(B, T, head_dim)"), OutputShape((B, T, T), "(B, T, T)")
    first_run(name, cls, sizes_of(cls), (draw(B, T, D_MODEL),), out, weights)


def _check_values(cls: Any, weigh: Weigh) -> None:
    """Raise what is wrong if the weights are right and the output is not their mean of values."""
    x = draw(B, T, D_MODEL)
    module = cls(**sizes_of(cls)).eval()
    out, weights = attend(module, x)
    q, k, v = (getattr(module, each)(x) for each in PROJECTIONS)
    if not is_equal(weights, weigh(q, k)) or is_equal(out, weights @ v):
        return
    others = {
        "it is the mean of the keys": weights @ k,
        "it is the mean of the queries": weights @ q,
        "the weights are transposed there, so that each column sums to 1": weights.mT @ v,
    }
    reason = next((reason for reason, other in others.items() if is_equal(out, other)), "")
    message = "the weights are right, and the output is not the mean of the values with these weights"
    raise NotDoneError(f"{message}{reason and f': {reason}'}")


def _check_weights(cls: Any, weigh: Weigh) -> None:
    """Raise what is said of weights that the checker would take for no attention at all."""
    module = cls(**sizes_of(cls)).eval()
    with torch.no_grad():
        x = draw(B, T, D_MODEL)
        _, weights = attend(module, x)
        q, k = module.W_q(x), module.W_k(x)
        right = weigh(q, k)
        width = k.shape[-1]
        wrong = (
            (weigh(x, x), "you compare the tokens themselves, as in lesson 1: q and k are made and not used"),
            (
                weigh(q, k.reshape(B, -1, T).mT),
                "the keys are reshaped, not transposed; reshape reads the numbers in their order and "
                "mixes tokens, and a transpose, k.mT, exchanges rows and columns",
            ),
            (
                right / width**0.5,
                "the weights are divided after softmax, so your rows do not sum to 1: divide the scores",
            ),
            (
                weigh(q, k * len(k) ** -0.5 * width**0.5),
                "len(k) is the number of texts in the batch; the width of a key is its last axis",
            ),
            (
                weigh(q, k * width**-1.5),
                "you divide by the square of the width; the lesson divides by its root",
            ),
            (
                weigh(q, k * 0.5 * width**-0.5),
                "you divide by twice the width: `** 1 / 2` is (width ** 1) / 2, and the root is ** 0.5",
            ),
            (
                weigh(q, k * 2 * width**-0.5),
                "you divide by half of the width; the lesson divides by its root",
            ),
            (
                torch.softmax((q @ k.mT / width**0.5).floor(), dim=-1),
                "`//` drops the fraction of every score; `/` keeps it",
            ),
            (
                torch.eye(x.shape[-2]).expand_as(right),
                "every token sees itself alone: its weight is 1, whatever the scores are",
            ),
        )
    is_causal = not right.triu(1).any()
    if is_causal and weights[:, :-1].isnan().all() and not weights[:, -1].isnan().any():
        said = "every row with a hidden key is NaN: +∞ wins over every other score, and −∞ hides"
        raise NotDoneError(said)
    scores, ones = q @ k.mT, torch.ones(B, T)
    columns = (torch.softmax(scores * scale, dim=-2) for scale in (1, width**-0.5))
    # With another mistake beside it, which the checker would look for in vain, for seconds.
    sums_columns = is_equal(weights.sum(-2), ones) and not is_equal(weights.sum(-1), ones)
    if not is_causal and sums_columns and all(not is_equal(weights, each) for each in columns):
        raise NotDoneError("Your columns sum to 1, not your rows; and something else differs")
    if weights.isnan().any() and not right.isnan().any():
        rows = "every row" if weights.isnan().all() else "some rows"
        if not is_causal or (hasattr(module, "causal_mask") and not module.causal_mask.any()):
            said = f"in {rows} the weights are NaN, which is no number: 0/0, ∞ − ∞ or a root below 0"
            raise NotDoneError(said)
    if not is_equal(weights, right):
        reject_variants(weights, (Variant(other, said=said) for other, said in wrong))


def _describe_unknown(outcome: Outcome, cls: Any) -> Outcome:
    """Return the outcome of a mistake without a name, in the lesson's words as far as they are known."""
    module, x = cls(**sizes_of(cls)).eval(), draw(B, T, D_MODEL)
    with torch.no_grad():
        out, weights = attend(module, x)
        v = module.W_v(x)
    said = []
    if not is_equal(weights.sum(dim=-1), torch.ones(B, T)):
        first = f"the rows of your weights do not sum to 1, the first to {weights[0, 0].sum():.4g}"
        are_columns = is_equal(weights.sum(dim=-2), torch.ones(B, T))
        said.append("Your columns sum to 1, not your rows" if are_columns else first)
    elif scale := _scale_of(cls, HEAD_DIM):
        said.append(f"the scores are multiplied by {scale:.4g}, and should be by {HEAD_DIM**-0.5:.4g}")
    if out.shape == v.shape and not is_equal(out, weights @ v):
        said.append("the output is not weights @ v")
    if not said:
        return outcome
    more = "; at least two things differ" if len(said) > 1 else ""
    return replace(outcome, message="; ".join(said) + more, hint="")


def _with_both_scales(outcome: Outcome, cls: Any) -> Outcome:
    """Return an outcome that calls a scale constant only if it is: the checker knows it at one width."""
    if outcome.mistake != "constant-scale":
        return outcome
    widths = (HEAD_DIM, 2 * HEAD_DIM)
    scales = [_scale_of(cls, width) for width in widths]
    if not all(scales) or abs(scales[0] - scales[1]) < TOLERANCE:
        return outcome
    factors = [scale * width**0.5 for scale, width in zip(scales, widths, strict=True)]
    if abs(factors[0] - factors[1]) > TOLERANCE:
        said = "; ".join(
            f"where head_dim is {width}, the scores are multiplied by {scale:.4g}, and 1/√head_dim is "
            f"{width**-0.5:.4g}"
            for scale, width in zip(scales, widths, strict=True)
        )
        return replace(outcome, mistake="", message=said, hint="divide by √head_dim, once")
    said = (
        f"the scores are divided by √head_dim, and then they are multiplied by {factors[0]:.4g} as well "
        f"(divided by {1 / factors[0]:.4g}), at every width"
    )
    return replace(outcome, mistake="", message=said, hint="divide once, by √head_dim alone")


def _scale_of(cls: Any, head_dim: int) -> float:
    """What the scores of a module of this width are multiplied by before softmax; 0 if that is no number."""
    module, x = cls(**sizes_of(cls, head_dim=head_dim)).eval(), draw(B, T, D_MODEL)
    with torch.no_grad():
        _, weights = attend(module, x)
        scores = module.W_q(x) @ module.W_k(x).mT
    # The last row sees every key, with a causal mask too. The log of a weight is its score minus a constant.
    own, plain = weights[:, -1].log().double(), scores[:, -1].double()
    own, plain = own - own.mean(-1, keepdim=True), plain - plain.mean(-1, keepdim=True)
    scale = float((own * plain).sum() / plain.square().sum())
    return scale if is_equal(own, scale * plain) else 0.0


def example_weights(cls: Any) -> Tensor:
    """Return the weights (T, T) that the learner's class gives the running example."""
    module = cls(**sizes_of(cls, *WQ.shape)).eval()
    with torch.no_grad():
        for name, weight in PROJECTIONS.items():
            projection = getattr(module, name)
            projection.weight.copy_(weight.T)
            if projection.bias is not None:
                projection.bias.zero_()
        weights: Tensor = attend(module, X[None])[1][0]
    return weights
