"""Mistakes of the mask: who may look at whom, and how the scores are told."""

from __future__ import annotations

from torch import Tensor

from regard.checker.mistakes.mistake import Mistake, Swap
from regard.checker.oracle.variant import TestSizes

_FILL = 'scores = scores.masked_fill(~allowed, float("-inf"))\n'
_CAP = "    if softcap is not None:\n        scores = softcap * torch.tanh(scores / softcap)\n"
_BUILD = "torch.ones(max_len, max_len, dtype=torch.bool).tril()"
_FUNCTION_SOFTMAX = "    weights = torch.softmax(scores, dim=-1)\n"
_MODULE_SOFTMAX = "        weights = torch.softmax(scores, dim=-1)\n"
_CAUSAL = "        allowed = keys <= at\n"


def every(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
    return (q >= 0) & (k >= 0)


def _earlier(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
    return k < q + n.S - n.T


def _later(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
    return k > q + n.S - n.T


def _from_here(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
    return k >= q + n.S - n.T


def _one_ahead(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
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

MASKING = (
    Mistake(
        "no-mask",
        "with no mask, though one was asked for",
        "Every token sees the future (or the padding): the training loss is splendid, generation is not.",
        "scores = scores.masked_fill(~mask, float('-inf')) before softmax, or is_causal=True",
        "a mask argument accepted and not handed on; a buffer registered and not used",
        (
            {"causal": every},
            {"given": "ignored"},
            {"causal": every, "given": "ignored"},
            {"given": "ignored", "padding": "ignored"},
            {"causal": every, "given": "ignored", "padding": "ignored"},
            {"causal": every, "given": "ignored", "padding": "ignored", "window": None},
        ),
        plants=_fill("scores = scores"),
    ),
    Mistake(
        "inverted-mask",
        "with the mask inverted: it hides what may be seen and shows what may not",
        "Each token sees only what it must not. With a causal mask the last row is empty.",
        "in Regard and F.scaled_dot_product_attention True = may look; masked_fill hides where True: pass "
        "~mask",
        "a published notebook's multi-head class on F.scaled_dot_product_attention, where row 0 sees token 7",
        (
            {"causal": _later},
            {"given": "inverted"},
            {"causal": _later, "given": "inverted"},
            {"given": "inverted", "padding": "inverted"},
            {"causal": _later, "given": "inverted", "padding": "inverted"},
            {"inverted": True},
            {"inverted": True, "always": True},
        ),
        plants={
            "function": ((_CAUSAL, "        allowed = keys > at\n"), ("allowed & mask", "allowed & ~mask")),
            "head": ((_FILL, 'scores = scores.masked_fill(allowed, float("-inf"))\n'),),
            "layer": ((_FILL, 'scores = scores.masked_fill(allowed, float("-inf"))\n'),),
        },
    ),
    Mistake(
        "transposed-mask",
        "with the mask transposed: each token sees itself and the future",
        "The past is hidden and the future is open.",
        "torch.ones(T, T, dtype=torch.bool).tril(): row = query, column = key",
        "`triu` where `tril` was meant",
        ({"causal": _from_here}, {"given": "transposed"}, {"causal": _from_here, "given": "transposed"}),
        plants=_built(f"{_ONES}.triu()", "keys >= at"),
    ),
    Mistake(
        "missing-diagonal",
        "with the diagonal masked too: no token sees itself",
        "Row 0 may look at nothing and becomes NaN (or a uniform mean); the others miss their own token.",
        "hide torch.triu(ones, diagonal=1), which leaves the diagonal visible",
        "`triu` without `diagonal=1`",
        ({"causal": _earlier},),
        plants=_built(f"~{_ONES}.triu()", "~torch.ones(T, S, dtype=torch.bool).triu(S - T)"),
    ),
    Mistake(
        "one-token-ahead",
        "with one token of the future visible",
        "Each token sees the one it is asked to predict: the loss falls to nothing, and so does the model.",
        "torch.ones(T, T, dtype=torch.bool).tril(): no diagonal=1 there, that is for triu",
        "`tril(diagonal=1)`, or `triu(diagonal=2)` hidden",
        ({"causal": _one_ahead},),
        plants=_built(f"{_ONES}.tril(1)", "keys <= at + 1"),
    ),
    Mistake(
        "zero-times-infinity",
        "with a mask made as (1 − mask) * −inf, where 0 · inf is NaN",
        "Every allowed score becomes NaN, and so does the whole output.",
        "scores.masked_fill(~mask, float('-inf')) fills instead of multiplying",
        "additive masks written as a product",
        ({"masking": "nan"}, {"masking": "nan", "always": True}),
        plants=_fill('scores = scores + (1 - allowed.to(scores.dtype)) * float("-inf")'),
    ),
    Mistake(
        "mask-after-softmax",
        "with the mask multiplied in after softmax and the rows not renormalised",
        "Rows sum to less than 1, and the hidden scores still weigh in the denominator.",
        "mask before softmax: scores.masked_fill(~mask, float('-inf'))",
        "`weights * mask`",
        ({"masking": "after"},),
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
        "that masks after softmax and divides by what is left",
        "The same numbers, until a hidden score towers over the visible ones: these underflow, and 0 / 0 is "
        "NaN.",
        "mask before softmax: scores.masked_fill(~mask, float('-inf'))",
        "tutorials, as the first way to mask",
        ({"masking": "after", "normalise": "renormalise"},),
        caution=True,
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
        "Visible scores rise by 1, hidden ones stay: the mask hides nothing.",
        "scores.masked_fill(~mask, float('-inf')), or add 0 and −inf instead of 1 and 0",
        "a boolean or 0/1 mask given to code that adds its mask",
        ({"masking": "add"}, {"masking": "add hidden"}),
        plants=_fill("scores = scores + allowed.to(scores.dtype)"),
    ),
    Mistake(
        "masked-with-zero",
        "with hidden scores set to 0 instead of −inf",
        "A score of 0 is an ordinary score: hidden tokens keep a share of the attention.",
        "scores.masked_fill(~mask, float('-inf'))",
        "`scores * mask`, and `masked_fill(mask == 0, 1e-9)` with its sign lost",
        ({"masking": "multiply"},),
        plants=_fill("scores = scores * allowed"),
    ),
    Mistake(
        "weak-mask-value",
        "with hidden scores set to a number that is not small enough",
        "Hidden tokens leak in as soon as the scores grow.",
        "float('-inf'), or torch.finfo(scores.dtype).min",
        "−100 or −1e4, once chosen to fit float16",
        tuple({"fill": fill} for fill in (-1.0, -10.0, -20.0, -50.0, -100.0, -1e3, -1e4)),
        plants=_fill("scores = scores.masked_fill(~allowed, -10.0)"),
    ),
    Mistake(
        "mask-scaled-too",
        "with the mask (or bias) scaled together with the scores",
        "A bias such as ALiBi comes out √D times too weak; a finite mask value hides less.",
        "scale first, then add: q @ k.transpose(-2, -1) * scale + mask",
        "`(scores + mask) / math.sqrt(D)`",
        ({"masking": "scaled"},),
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
        "In float16 masked_fill raises, or the value becomes −inf; a row that may look at nothing is a "
        "uniform "
        "mean of what it must not see.",
        "scores.masked_fill(~mask, float('-inf')), or torch.finfo(scores.dtype).min",
        "−1e9 in many tutorials",
        caution=True,
        plants=_fill("scores = scores.masked_fill(~allowed, -1e9)"),
    ),
    Mistake(
        "empty-row-nan",
        "in which a query that may look at nothing gives NaN",
        "One fully padded row turns the loss, and then every weight, into NaN.",
        "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) after softmax",
        "softmax of a row of −inf; torch.nn.MultiheadAttention does so too",
        caution=True,
        plants={
            "function": (("    weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)\n", ""),)
        },
    ),
    Mistake(
        "nan-in-padding",
        "in which NaN in a position that nobody may look at reaches the output",
        "0 · NaN is NaN: uninitialised padding poisons real tokens.",
        "zero the values (and keys) that nobody may look at: v.masked_fill(~real[..., None], 0.0)",
        "F.scaled_dot_product_attention does so too",
        caution=True,
        plants={"function": (("    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)\n", ""),)},
    ),
    Mistake(
        "padded-keys-leak",
        "in which padded keys are looked at",
        "A sentence's output depends on how much padding its batch happened to need.",
        "hide padded keys from every query: mask[:, None, None, :] on (B, H, T, S)",
        "a padding mask that is accepted and never used",
        ({"padding": "ignored"}, {"padding": "inverted"}),
        plants={"function": (("softcap=None):", "softcap=None, key_padding_mask=None):"),)},
    ),
    Mistake(
        "window-off-by-one",
        "with a window that is one key too wide or too narrow",
        "Not the attention that the model was trained with; a cache of the window's size then holds a key "
        "too few.",
        "the n latest keys up to the query's own: k > q - n",
        "`>=` where `>` was meant",
        ({"window": 1}, {"window": -1}),
        plants={"function": (("(keys > at - window)", "(keys >= at - window)"),)},
    ),
    Mistake(
        "window-dropped",
        "without the window that was asked for",
        "Right on short texts, another attention on long ones.",
        "mask = causal & window(n)",
        "an argument that one code path hands on and another does not",
        ({"window": None},),
        plants={"function": (("allowed & (keys > at - window)", "allowed"),)},
    ),
    Mistake(
        "softcap-after-mask",
        "with the soft cap after the mask",
        "tanh turns −inf into −cap: hidden tokens leak in with a weight of exp(−cap).",
        "cap first, then mask",
        "the order of early ONNX Attention releases",
        ({"softcap": "after"},),
        plants={
            "function": (
                (_CAP, ""),
                ("    " + _FILL, "    " + _FILL + _CAP),
            )
        },
    ),
    Mistake(
        "softcap-dropped",
        "without the soft cap that was asked for",
        "Large scores come out larger than the model was trained with.",
        "scores = softcap * torch.tanh(scores / softcap) before the mask",
        "fused kernels without the option, called all the same",
        ({"softcap": "dropped"},),
        plants={
            "function": (("        scores = softcap * torch.tanh(scores / softcap)\n", "        pass\n"),)
        },
    ),
)
