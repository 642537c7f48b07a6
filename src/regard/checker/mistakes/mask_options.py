"""Mistakes of what comes beside the causal mask: padding, empty rows, windows and soft caps."""

from __future__ import annotations

from regard.checker.mistakes.mistake import Mistake, Swap

_PADDED: tuple[Swap, ...] = (("softcap=None):", "softcap=None, key_padding_mask=None):"),)


def _with_padding(line: str) -> dict[str, tuple[Swap, ...]]:
    """Return the function with a padding mask, which `line` applies."""
    given = f"        bias = mask\n    if key_padding_mask is not None:\n        {line}\n"
    return {"function": (*_PADDED, ("        bias = mask\n", given))}


_ITEMS = "is_token = key_padding_mask[:, None, None, :]\n        "
_KEPT = "allowed = allowed & key_padding_mask[:, None, None, :]"

MASK_OPTION_MISTAKES = (
    Mistake(
        "empty-row-nan",
        "in which a query without a visible key gives NaN",
        "One fully padded row makes the loss NaN, and then every parameter.",
        "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) after softmax",
        "softmax of a row of −inf; torch.nn.MultiheadAttention does the same",
        warning=True,
        symptom="The loss is NaN in the first batch with an empty or fully padded row, and after one "
        "more step every parameter is.",
        why="Softmax over nothing but −inf is 0 / 0. One NaN in a mean makes the mean NaN, and its "
        "gradient reaches all weights.",
        test="empty-rows-are-zero",
        plants={
            "function": (("    weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)\n", ""),)
        },
    ),
    Mistake(
        "nan-in-padding",
        "in which NaN in a hidden position reaches the output",
        "0 · NaN is NaN, so uninitialised padding makes the outputs of tokens NaN.",
        "set hidden values (and keys) to 0: v.masked_fill(~is_token[..., None], 0.0)",
        "F.scaled_dot_product_attention, which does the same",
        warning=True,
        symptom="NaN that comes and goes with the batch: wherever memory that was never written, or a "
        "position that overflowed, is used as padding.",
        why="A hidden key has a weight of 0, and 0 · NaN is NaN. The mask hides scores; the product "
        "with the values still reads every value.",
        test="nan-stays-in-the-padding",
        plants={"function": (("    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)\n", ""),)},
    ),
    Mistake(
        "padded-keys-leak",
        "in which padded keys are visible",
        "A sequence's output depends on how much padding its batch needs.",
        "hide padded keys from every query: mask[:, None, None, :] on (B, H, T, S)",
        "a padding mask that is accepted and not used",
        ({"padding": "ignored"}, {"padding": "queries"}),
        symptom="The output of a text changes with the longest text of its batch, and evaluation with "
        "another batch size gives another loss.",
        why="Padding is an ordinary vector to attention. Unless its keys are hidden from every query, "
        "it gets weight like any word.",
        test="padding-does-not-matter",
        mended=_with_padding(_KEPT),
        plants={"function": _PADDED},
    ),
    Mistake(
        "mask-of-first-item",
        "with the first item's mask for every item of the batch",
        "In a batch of texts of different lengths padding is visible, or words are hidden.",
        "keep the batch's axis: key_padding_mask[:, None, None, :] on (B, H, T, S), or mask[:, None]",
        "`mask[0]`, or `mask[:1]` to make it broadcast over heads",
        ({"padding": "first item"}, {"mask_argument": "first item"}),
        symptom="Right with a batch of one, and with texts of one length. Otherwise the output of a text "
        "depends on which text comes first in its batch.",
        why="A mask (B, S) has a row for each item. What takes its first row, so that the shapes fit, hides "
        "the same keys for all of them.",
        test="every-item-has-its-own-padding",
        mended=_with_padding(_KEPT),
        plants=_with_padding("allowed = allowed & key_padding_mask[0]"),
    ),
    Mistake(
        "mask-tiled-over-heads",
        "with the masks of the batch repeated in the wrong order over batch and heads",
        "Some heads of an item use the mask of another item: padding is visible, or words are hidden.",
        "mask.repeat_interleave(H, dim=0), or a mask (B, 1, T, S), which needs no repetition",
        "`mask.repeat(H, 1, 1)` for scores (B·H, T, S)",
        ({"padding": "tiled"}, {"mask_argument": "tiled"}),
        symptom="Right with a batch of one, and with texts of one length. Otherwise the output of a text "
        "changes with the other texts of its batch.",
        why="Scores (B·H, T, S) hold all heads of item 0, then all of item 1. `repeat` gives the masks of "
        "items 0, 1, 2, …, and then again 0, 1, 2, …: another order.",
        test="every-item-has-its-own-padding",
        mended=_with_padding(_KEPT),
        plants=_with_padding(
            "allowed = allowed & key_padding_mask.repeat(q.shape[1], 1).view(*q.shape[:2], 1, S)"
        ),
    ),
    Mistake(
        "option-dropped",
        "in which one option switches another one off",
        "A caller who asks for both gets one of them, and nothing says so.",
        "apply both, allowed = causal & mask, or raise ValueError if both are given",
        "`if mask is not None: … elif is_causal: …`",
        symptom="Each option alone is right. With a padding mask, tokens see the future; or with "
        "`causal=True` they see the padding.",
        why="Two branches of one `if` exclude each other. A key is visible only if every mask allows it.",
        test="a-mask-and-causality-add-up",
        plants={"function": (("allowed = allowed & mask", "allowed = mask"),)},
    ),
    Mistake(
        "masks-joined-by-or",
        "in which a key is hidden only if every mask hides it",
        "With two masks at once, either shows what the other one hides.",
        "visible = a & b where True means may look; hidden = a | b where True hides",
        "`&` on masks in which True hides, or `|` on masks in which True means may look",
        ({"joined": "any"},),
        symptom="Each mask alone is right. With both, tokens see padding, and hidden keys of the other mask.",
        why="A key is visible if all masks allow it, and hidden if any of them hides it: `&` is right where "
        "True means may look, and `|` where True hides.",
        test="two-masks-add-up",
        mended=_with_padding(f"{_ITEMS}allowed = allowed & is_token"),
        plants=_with_padding(f"{_ITEMS}allowed = allowed & is_token if mask is None else allowed | is_token"),
    ),
    Mistake(
        "window-off-by-one",
        "with a window that is one key too wide or too narrow",
        "It is not the attention that the model was trained with, and a cache of the window's size misses a "
        "key.",
        "let a query see the n latest keys, its own included: k > q - n",
        "`>=` where `>` was meant",
        ({"window": 1}, {"window": -1}, {"ahead": "one more"}, {"ahead": "one less"}),
        symptom="The loss hardly tells. Loaded weights give slightly other numbers in texts longer than "
        "the window, and a rolling cache of n keys no longer agrees with the whole text.",
        why="A window of n keys counts the query's own: keys q − n + 1 to q. `>=` in place of `>` makes "
        "it n + 1.",
        test="a-window-of-one-is-the-token-itself",
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
        symptom="Right on every text that fits into the window; on longer ones the model sees more than "
        "it was trained with, and memory grows with the length.",
        why="The argument reaches one code path, often the one that is tested, and not the other.",
        test="a-window-of-one-is-the-token-itself",
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
        symptom="Maps of a loaded model are almost uniform, and what it writes is garbage.",
        why="Divide, tanh, multiply: without the last step all scores lie between −1 and 1, and no "
        "weight can be more than e² ≈ 7.4 times another.",
        test="a-soft-cap-has-two-limits",
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
        symptom="Right where scores are small. Where they are large, maps are sharper than the "
        "original's and the output differs, layer by layer a little more.",
        why="The model was trained with scores that never exceed the cap, and its weights count on it.",
        test="a-soft-cap-has-two-limits",
        plants={
            "function": (("        scores = softcap * torch.tanh(scores / softcap)\n", "        pass\n"),)
        },
    ),
)
