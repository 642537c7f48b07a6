"""Mistakes of the mask: which keys are visible, and how the mask is applied to the scores."""

from __future__ import annotations

from torch import Tensor

from regard.checker.mistakes.mistake import Mistake, Swap
from regard.checker.oracle.variant import CaseSizes

_FILL = 'scores = scores.masked_fill(~allowed, float("-inf"))\n'
_CAP = "    if softcap is not None:\n        scores = softcap * torch.tanh(scores / softcap)\n"
_BUILD = "torch.ones(max_len, max_len, dtype=torch.bool).tril()"
_FUNCTION_SOFTMAX = "    weights = torch.softmax(scores, dim=-1)\n"
_MODULE_SOFTMAX = "        weights = torch.softmax(scores, dim=-1)\n"
_CAUSAL = "        allowed = keys <= at\n"


def every(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (q >= 0) & (k >= 0)


def _earlier(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k < q + n.S - n.T


def _later(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k > q + n.S - n.T


def _from_here(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k >= q + n.S - n.T


def _one_ahead(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q + n.S - n.T + 1


def _fill(new: str) -> dict[str, tuple[Swap, ...]]:
    return {kind: ((_FILL, f"{new}\n"),) for kind in ("function", "head", "layer")}


def _built(new: str, function: str) -> dict[str, tuple[Swap, ...]]:
    return {
        "function": ((_CAUSAL, f"        allowed = {function}\n"),),
        "head": ((_BUILD, new),),
        "layer": ((_BUILD, new),),
    }


_ONES = "torch.ones(max_len, max_len, dtype=torch.bool)"

_WEAK = (
    -1.0,
    -2.0,
    -5.0,
    -9.0,
    -10.0,
    -15.0,
    -20.0,
    -30.0,
    -50.0,
    -99.0,
    -100.0,
    -999.0,
    -1e3,
    -9999.0,
    -1e4,
)

MASK_MISTAKES = (
    Mistake(
        "no-mask",
        "without the mask that was requested",
        "Every token sees the future (or the padding): the training loss is low and generation fails.",
        "scores = scores.masked_fill(~mask, float('-inf')) before softmax, or is_causal=True",
        "a mask argument that is accepted and not passed on; a buffer that is registered and not used",
        (
            {"causal": every},
            {"mask_argument": "ignored"},
            {"causal": every, "mask_argument": "ignored"},
            {"mask_argument": "ignored", "padding": "ignored"},
            {"causal": every, "mask_argument": "ignored", "padding": "ignored"},
            {"causal": every, "mask_argument": "ignored", "padding": "ignored", "window": None},
        ),
        symptom="The training loss falls far below what is possible, towards 0, and what the model "
        "writes is garbage. The map has no dark triangle.",
        why="A token that sees the next one can copy it instead of predicting it. When it writes there "
        "is no next one.",
        test="future-does-not-matter",
        plants=_fill("scores = scores"),
    ),
    Mistake(
        "always-causal",
        "that is causal although its argument says that it should not be",
        "An encoder, a prefix or cross-attention never sees later tokens, and nothing says so.",
        "if is_causal: allowed = keys <= at; or pass the argument on: is_causal=is_causal",
        "a fallback for a decoder that takes `causal` for its signature's sake, and passes is_causal=True",
        ({"always_causal": True},),
        symptom="Causal models are right. An encoder trains to a worse loss, and the upper triangle of its "
        "maps is empty.",
        why="An argument that is accepted and not read has its default's effect for one caller and the "
        "opposite for another.",
        test="agrees-with-pytorch",
        plants={
            "function": (("    if is_causal:\n        allowed = keys <= at\n", "    allowed = keys <= at\n"),)
        },
    ),
    Mistake(
        "inverted-mask",
        "with the mask inverted: visible keys are hidden, and hidden ones visible",
        "Each token sees only what it must not see. With a causal mask the last row is empty.",
        "pass ~mask: in Regard and F.scaled_dot_product_attention True means may look, while masked_fill "
        "hides where the mask is True",
        "a mask for masked_fill that is passed to F.scaled_dot_product_attention",
        (
            {"causal": _later},
            {"mask_argument": "inverted"},
            {"causal": _later, "mask_argument": "inverted"},
            {"padding": "inverted"},
            {"mask_argument": "inverted", "padding": "inverted"},
            {"causal": _later, "mask_argument": "inverted", "padding": "inverted"},
            {"inverted": True},
            {"inverted": True, "always": True},
        ),
        symptom="The loss is NaN at step 0, since the last token sees nothing. If something catches the "
        "NaN, the training loss is far too low: only the future is visible.",
        why="masked_fill hides where its mask is True; F.scaled_dot_product_attention hides where it is "
        "False. A mask made for one and given to the other hides the past and shows the future.",
        test="first-token-reads-itself",
        plants={
            "function": ((_CAUSAL, "        allowed = keys > at\n"), ("allowed & mask", "allowed & ~mask")),
            "head": ((_FILL, 'scores = scores.masked_fill(allowed, float("-inf"))\n'),),
            "layer": ((_FILL, 'scores = scores.masked_fill(allowed, float("-inf"))\n'),),
        },
    ),
    Mistake(
        "transposed-mask",
        "with the mask transposed: each token sees itself and the future",
        "The past is hidden and the future is visible.",
        "torch.ones(T, T, dtype=torch.bool).tril(): row = query, column = key",
        "`triu` where `tril` was meant",
        (
            {"causal": _from_here},
            {"mask_argument": "transposed"},
            {"causal": _from_here, "mask_argument": "transposed"},
        ),
        symptom="The training loss falls far below what is possible, and what the model writes is "
        "garbage. The map's dark triangle is the lower one.",
        why="Row = query, column = key: the past of a query lies to the left, which is the lower "
        "triangle. The upper triangle with its diagonal is the future.",
        test="future-does-not-matter",
        plants=_built(f"{_ONES}.triu()", "keys >= at"),
    ),
    Mistake(
        "missing-diagonal",
        "with the diagonal masked too, so that no token sees itself",
        "Row 0 has no visible key and becomes NaN (or a uniform mean); the others miss their own token.",
        "hide torch.triu(ones, diagonal=1), which leaves the diagonal visible",
        "`triu` without `diagonal=1`",
        ({"causal": _earlier},),
        symptom="The loss is NaN at step 0. If −1e9 hides instead of −inf, there is no NaN, and the "
        "first token reads the mean of the whole text.",
        why="triu keeps the diagonal, so that hiding triu hides each token from itself. The first token "
        "has nothing else to see, and softmax over nothing but −inf is NaN.",
        test="first-token-reads-itself",
        plants=_built(f"~{_ONES}.triu()", "~torch.ones(T, S, dtype=torch.bool).triu(S - T)"),
    ),
    Mistake(
        "one-token-ahead",
        "with one token of the future visible",
        "Each token sees the one it should predict: the loss falls to 0, and the model learns to copy.",
        "torch.ones(T, T, dtype=torch.bool).tril(), without diagonal=1, which belongs to triu",
        "`tril(diagonal=1)`, or `triu(diagonal=2)` hidden",
        ({"causal": _one_ahead},),
        symptom="The training loss falls to 0, and what the model writes is garbage. The map has a "
        "bright line just above the diagonal.",
        why="tril(diagonal=1) leaves the first diagonal above the main one visible. That is the token "
        "which position t has to predict.",
        test="future-does-not-matter",
        plants=_built(f"{_ONES}.tril(1)", "keys <= at + 1"),
    ),
    Mistake(
        "zero-times-infinity",
        "with a mask made as (1 − mask) * −inf, where 0 · inf is NaN",
        "Every allowed score becomes NaN, and so does the whole output.",
        "scores.masked_fill(~mask, float('-inf')), which fills instead of multiplying",
        "additive masks computed as a product",
        ({"masking": "nan"}, {"masking": "nan", "always": True}),
        symptom="The loss is NaN at step 0, and every output is NaN, also without any padding.",
        why="In floating point 0 · inf is not 0 but NaN, so the product is NaN exactly where you meant "
        "to add nothing.",
        test="first-token-reads-itself",
        plants=_fill('scores = scores + (1 - allowed.to(scores.dtype)) * float("-inf")'),
    ),
    Mistake(
        "mask-after-softmax",
        "with the mask applied after softmax, without renormalising the rows",
        "Rows sum to less than 1, and by how much depends on hidden scores: the future leaks through "
        "the denominator.",
        "mask before softmax: scores.masked_fill(~mask, float('-inf'))",
        "`weights * mask`",
        ({"masking": "after"},),
        symptom="Rows of the map sum to less than 1, the early ones least. The training loss is better "
        "than it can be, and what the model writes is garbage: the future leaks without one "
        "visible weight on it.",
        why="Softmax has divided by a sum in which the hidden scores count. Setting their weights to 0 "
        "afterwards leaves that sum as it was, so the size of a row tells what stands in its "
        "future.",
        test="rows-sum-to-one",
        plants={
            "function": (
                ("    " + _FILL, ""),
                (_FUNCTION_SOFTMAX, "    weights = torch.softmax(scores, dim=-1) * allowed\n"),
            ),
            "head": (
                ("        " + _FILL, ""),
                (_MODULE_SOFTMAX, "        weights = torch.softmax(scores, dim=-1) * allowed\n"),
            ),
            "layer": (
                ("        " + _FILL, ""),
                (_MODULE_SOFTMAX, "        weights = torch.softmax(scores, dim=-1) * allowed\n"),
            ),
        },
    ),
    Mistake(
        "renormalised-after-softmax",
        "that masks after softmax and renormalises the rows",
        "The numbers are right until a hidden score is far above the visible ones: these underflow, and "
        "0 / 0 is NaN.",
        "mask before softmax: scores.masked_fill(~mask, float('-inf'))",
        "tutorials that introduce masks this way",
        ({"masking": "after", "normalise": "renormalise"},),
        warning=True,
        symptom="None, for a long time: loss and maps are right. Then, once in a long training, NaN.",
        why="In exact arithmetic it is the same. In floating point a hidden score some 100 above the "
        "visible ones makes their weights underflow to 0, and the row's sum with them: 0 / 0.",
        test="future-does-not-matter",
        plants={
            "head": (
                ("        " + _FILL, ""),
                (
                    _MODULE_SOFTMAX,
                    "        weights = torch.softmax(scores, dim=-1) * allowed\n"
                    "        weights = weights / weights.sum(-1, keepdim=True)\n",
                ),
            ),
            "layer": (
                ("        " + _FILL, ""),
                (
                    _MODULE_SOFTMAX,
                    "        weights = torch.softmax(scores, dim=-1) * allowed\n"
                    "        weights = weights / weights.sum(-1, keepdim=True)\n",
                ),
            ),
        },
    ),
    Mistake(
        "mask-added-as-zero-one",
        "with a 0/1 mask added to the scores",
        "Visible scores rise by 1 and hidden ones stay, so the mask hides nothing.",
        "scores.masked_fill(~mask, float('-inf')), or add 0 and −inf instead of 1 and 0",
        "a boolean or 0/1 mask passed to code that adds its mask",
        ({"masking": "add"}, {"masking": "add hidden"}),
        symptom="The training loss falls far below what is possible, and what the model writes is "
        "garbage. The map is bright everywhere, a little brighter on and below the diagonal.",
        why="Adding 1 multiplies a weight by e before the rows are normalised, and adding 0 leaves it. "
        "Only adding −inf hides.",
        test="future-does-not-matter",
        plants=_fill("scores = scores + allowed.to(scores.dtype)"),
    ),
    Mistake(
        "masked-with-zero",
        "with hidden scores set to 0 instead of −inf",
        "A score of 0 is an ordinary score, so hidden tokens keep some weight.",
        "scores.masked_fill(~mask, float('-inf'))",
        "`scores * mask`, or `masked_fill(mask == 0, 1e-9)` without the minus sign",
        ({"masking": "multiply"},),
        symptom="The training loss is better than it can be, and what the model writes is worse than "
        "its loss. The map's upper triangle is not dark, but one grey.",
        why="exp(0) is 1: a score of 0 gets as much weight as any ordinary score.",
        test="future-does-not-matter",
        plants=_fill("scores = scores * allowed"),
    ),
    Mistake(
        "softcap-after-mask",
        "with the soft cap after the mask",
        "tanh turns −inf into −cap, so hidden tokens get a weight of exp(−cap).",
        "apply the soft cap first, then the mask",
        "the order of early ONNX Attention releases",
        ({"softcap": "after"},),
        symptom="With a large cap, nothing: exp(−50) is invisible. With a small one the map's upper "
        "triangle is not quite dark, and the output depends on hidden keys.",
        why="tanh(−inf) is −1, so that a capped −inf is −cap: an ordinary low score.",
        test="future-does-not-matter-under-a-soft-cap",
        plants={
            "function": (
                (_CAP, ""),
                ("    " + _FILL, "    " + _FILL + _CAP),
            )
        },
    ),
    Mistake(
        "weak-mask-value",
        "with hidden scores set to a number that is not low enough",
        "Hidden tokens get weight as soon as the scores grow.",
        "float('-inf'), or torch.finfo(scores.dtype).min",
        "−10 or −100, chosen to be safe in float16",
        tuple({"fill": fill} for fill in _WEAK),
        symptom="Nothing at first. As training makes the scores larger, the loss falls below what is "
        "possible and generation gets worse: the model has found the gap.",
        why="A hidden key with −10 has a weight of exp(−10) beside a visible one with 0. If visible "
        "scores fall below −10, the hidden key even wins.",
        test="future-does-not-matter",
        plants=_fill("scores = scores.masked_fill(~allowed, -10.0)"),
    ),
    Mistake(
        "mask-scaled-too",
        "with the mask (or bias) scaled together with the scores",
        "A bias such as ALiBi is too weak by a factor of √D, and a finite mask value hides less.",
        "scale first, then add: q @ k.transpose(-2, -1) * scale + mask",
        "`(scores + mask) / math.sqrt(D)`",
        ({"masking": "scaled"}, {"bias": "scaled"}),
        symptom="A boolean mask works as ever. A float bias such as ALiBi or a relative position is too "
        "weak, and far tokens get more weight than the original model gives them.",
        why="The bias is defined in units of scaled scores. Dividing it by √D together with the "
        "products makes it √D times smaller.",
        test="a-bias-is-added-to-the-scaled-scores",
        plants={
            "function": (
                ("    scores = scores / math.sqrt(D)\n", "    scores = (scores + bias) / math.sqrt(D)\n"),
                ("    scores = scores + bias\n", ""),
            )
        },
    ),
    Mistake(
        "finite-mask-value",
        "that hides with −1e9, which float16 cannot hold",
        "In float16 masked_fill raises, or the value becomes −inf; a row without a visible key becomes the "
        "mean over hidden ones.",
        "scores.masked_fill(~mask, float('-inf')), or torch.finfo(scores.dtype).min",
        "−1e9 in many tutorials",
        warning=True,
        symptom="None in float32. In float16 forward raises, or hides with −inf after all; a row "
        "without a visible key gives a mean over hidden tokens instead of a NaN that you would "
        "notice.",
        why="The lowest number of float16 is −65504. Where every score of a row is −1e9, all are equal, "
        "and softmax is uniform.",
        test="runs-in-float16",
        plants=_fill("scores = scores.masked_fill(~allowed, -1e9)"),
    ),
)
