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
        plants=_fill("scores = scores"),
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
            {"mask_argument": "inverted", "padding": "inverted"},
            {"causal": _later, "mask_argument": "inverted", "padding": "inverted"},
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
        "The past is hidden and the future is visible.",
        "torch.ones(T, T, dtype=torch.bool).tril(): row = query, column = key",
        "`triu` where `tril` was meant",
        (
            {"causal": _from_here},
            {"mask_argument": "transposed"},
            {"causal": _from_here, "mask_argument": "transposed"},
        ),
        plants=_built(f"{_ONES}.triu()", "keys >= at"),
    ),
    Mistake(
        "missing-diagonal",
        "with the diagonal masked too, so that no token sees itself",
        "Row 0 has no visible key and becomes NaN (or a uniform mean); the others miss their own token.",
        "hide torch.triu(ones, diagonal=1), which leaves the diagonal visible",
        "`triu` without `diagonal=1`",
        ({"causal": _earlier},),
        plants=_built(f"~{_ONES}.triu()", "~torch.ones(T, S, dtype=torch.bool).triu(S - T)"),
    ),
    Mistake(
        "one-token-ahead",
        "with one token of the future visible",
        "Each token sees the one it should predict: the loss falls to 0, and the model learns to copy.",
        "torch.ones(T, T, dtype=torch.bool).tril(), without diagonal=1, which belongs to triu",
        "`tril(diagonal=1)`, or `triu(diagonal=2)` hidden",
        ({"causal": _one_ahead},),
        plants=_built(f"{_ONES}.tril(1)", "keys <= at + 1"),
    ),
    Mistake(
        "zero-times-infinity",
        "with a mask made as (1 − mask) * −inf, where 0 · inf is NaN",
        "Every allowed score becomes NaN, and so does the whole output.",
        "scores.masked_fill(~mask, float('-inf')), which fills instead of multiplying",
        "additive masks computed as a product",
        ({"masking": "nan"}, {"masking": "nan", "always": True}),
        plants=_fill('scores = scores + (1 - allowed.to(scores.dtype)) * float("-inf")'),
    ),
    Mistake(
        "mask-after-softmax",
        "with the mask applied after softmax, without renormalising the rows",
        "Rows sum to less than 1, since hidden scores still count in the denominator.",
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
        "that masks after softmax and renormalises the rows",
        "The numbers are right until a hidden score is far above the visible ones: these underflow, and "
        "0 / 0 is NaN.",
        "mask before softmax: scores.masked_fill(~mask, float('-inf'))",
        "tutorials that introduce masks this way",
        ({"masking": "after", "normalise": "renormalise"},),
        warning=True,
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
        plants=_fill("scores = scores + allowed.to(scores.dtype)"),
    ),
    Mistake(
        "masked-with-zero",
        "with hidden scores set to 0 instead of −inf",
        "A score of 0 is an ordinary score, so hidden tokens keep some weight.",
        "scores.masked_fill(~mask, float('-inf'))",
        "`scores * mask`, or `masked_fill(mask == 0, 1e-9)` without the minus sign",
        ({"masking": "multiply"},),
        plants=_fill("scores = scores * allowed"),
    ),
    Mistake(
        "softcap-after-mask",
        "with the soft cap after the mask",
        "tanh turns −inf into −cap, so hidden tokens get a weight of exp(−cap).",
        "apply the soft cap first, then the mask",
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
        "weak-mask-value",
        "with hidden scores set to a number that is not low enough",
        "Hidden tokens get weight as soon as the scores grow.",
        "float('-inf'), or torch.finfo(scores.dtype).min",
        "−10 or −100, chosen to be safe in float16",
        tuple({"fill": fill} for fill in _WEAK),
        plants=_fill("scores = scores.masked_fill(~allowed, -10.0)"),
    ),
    Mistake(
        "mask-scaled-too",
        "with the mask (or bias) scaled together with the scores",
        "A bias such as ALiBi is too weak by a factor of √D, and a finite mask value hides less.",
        "scale first, then add: q @ k.transpose(-2, -1) * scale + mask",
        "`(scores + mask) / math.sqrt(D)`",
        ({"masking": "scaled"}, {"bias": "scaled"}),
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
        plants=_fill("scores = scores.masked_fill(~allowed, -1e9)"),
    ),
    Mistake(
        "empty-row-nan",
        "in which a query without a visible key gives NaN",
        "One fully padded row makes the loss NaN, and then every parameter.",
        "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) after softmax",
        "softmax of a row of −inf; torch.nn.MultiheadAttention does the same",
        warning=True,
        plants={
            "function": (("    weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)\n", ""),)
        },
    ),
    Mistake(
        "nan-in-padding",
        "in which NaN in a hidden position reaches the output",
        "0 · NaN is NaN, so uninitialised padding makes the outputs of tokens NaN.",
        "set hidden values (and keys) to 0: v.masked_fill(~is_token[..., None], 0.0)",
        "F.scaled_dot_product_attention does the same",
        warning=True,
        plants={"function": (("    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)\n", ""),)},
    ),
    Mistake(
        "padded-keys-leak",
        "in which padded keys are visible",
        "A sequence's output depends on how much padding its batch needs.",
        "hide padded keys from every query: mask[:, None, None, :] on (B, H, T, S)",
        "a padding mask that is accepted and not used",
        ({"padding": "ignored"}, {"padding": "inverted"}, {"padding": "queries"}),
        plants={"function": (("softcap=None):", "softcap=None, key_padding_mask=None):"),)},
    ),
    Mistake(
        "window-off-by-one",
        "with a window that is one key too wide or too narrow",
        "It is not the attention that the model was trained with, and a cache of the window's size misses a "
        "key.",
        "let a query see the n latest keys, its own included: k > q - n",
        "`>=` where `>` was meant",
        ({"window": 1}, {"window": -1}, {"ahead": "one more"}, {"ahead": "one less"}),
        plants={
            "function": (("(keys > at - window)", "(keys >= at - window)"),),
            "flash": (("keys >= at - left", "keys > at - left"),),
            "packed": (("keys >= at - left", "keys > at - left"),),
            "kv cache": (("keys >= at - left", "keys >= at - left - 1"),),
        },
    ),
    Mistake(
        "window-dropped",
        "without the window that was requested",
        "It is right on short texts and wrong on long ones.",
        "mask = causal & window(n)",
        "an argument that one code path passes on and another does not",
        ({"window": None},),
        plants={
            "function": (("allowed & (keys > at - window)", "allowed"),),
            "flash": (("allowed & (keys >= at - left)", "allowed"),),
            "packed": (("allowed & (keys >= at - left)", "allowed"),),
            "kv cache": (("allowed & (keys >= at - left)", "allowed"),),
        },
    ),
    Mistake(
        "softcap-not-multiplied",
        "with tanh(scores / cap), not multiplied by the cap again",
        "All scores lie between −1 and 1: attention is almost uniform.",
        "scores = softcap * torch.tanh(scores / softcap)",
        "one of the three steps divide, tanh, multiply forgotten",
        ({"softcap": "not multiplied"},),
        plants={
            "function": (
                ("scores = softcap * torch.tanh(scores / softcap)", "scores = torch.tanh(scores / softcap)"),
            )
        },
    ),
    Mistake(
        "softcap-dropped",
        "without the soft cap that was requested",
        "Large scores are larger than those the model was trained with.",
        "scores = softcap * torch.tanh(scores / softcap) before the mask",
        "fused kernels that do not have the option",
        ({"softcap": "dropped"},),
        plants={
            "function": (("        scores = softcap * torch.tanh(scores / softcap)\n", "        pass\n"),)
        },
    ),
)
