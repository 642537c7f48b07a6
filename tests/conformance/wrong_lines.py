"""Mistakes of the catalogue as other lines of the NumPy program: pairs of a right text and a wrong one."""

# ruff: noqa: E501

SCALE = 'scale = case["scale"]'
CAUSAL = "masks.append(j <= i)\n"
MASK = "masks.append(mask != 0)"
PADDING = "masks.append(padding[:, None, None, :] != 0)"
FILL = "scores = np.where(visible, scores, -np.inf)"
WEIGHTS = "weights = softmax(logits)[..., :S]"
WINDOW = 'j > i - case["window"]'
CAP = 'scores = case["softcap"] * np.tanh(scores / case["softcap"])'
SINKS = "np.broadcast_to(sinks[:, None, None], (B, H, T, 1))"
GROUPS = "k, v = np.repeat(k, H // G, 1), np.repeat(v, H // G, 1)"
BLOCKS = "np.split(logits, range(16, S, 16), -1)"
SLICES = "q[a : a + n], k[b : b + m], v[b : b + m]"
APPENDED = "keys, values = np.concatenate([keys, k[:, :, new]], 2), np.concatenate([values, v[:, :, new]], 2)"
CALL = "output, lse = attention(case, q[:, :, new], keys, values, padding=there, sinks=sinks)"

UNGUARDED = ("np.where(total > 0, total, 1)", "total")
OUTPUT = """results[f"{case['name']}.output"], results"""
SCORES = "scores = q @ np.swapaxes(k,"
SIZES = "(B, H, T), (G, S) = q.shape[:3], k.shape[1:3]"
STALE = """
def stale(x, n=16):
    blocks = np.split(x, range(n, x.shape[-1], n), -1)
    highest = np.concatenate([block.max(-1, keepdims=True) for block in blocks], -1)
    running = np.repeat(np.maximum.accumulate(highest, -1), n, -1)[..., : x.shape[-1]]
    weights = np.exp(x - running)
    return weights / weights.sum(-1, keepdims=True)
"""
REMERGED = """
def remerged(x, n=16):
    blocks = np.split(x, range(n, x.shape[-1], n), -1)
    with np.errstate(divide="ignore"):
        lse = [np.log(np.exp(block - peak(block)).sum(-1, keepdims=True)) + peak(block) for block in blocks]
    shares = softmax(np.concatenate(lse, -1) * np.log(2))
    return np.concatenate([softmax(block) * shares[..., i : i + 1] for i, block in enumerate(blocks)], -1)
"""

WRONG = {
    "no-scale": [(SCALE, "scale = 1.0")],
    "scaled-by-width": [(SCALE, "scale = 1 / q.shape[-1]")],  # the numbers of scaled-twice
    "scale-from-model-width": [(SCALE, "scale = (H * q.shape[-1]) ** -0.5")],
    "scale-multiplied": [(SCALE, "scale = q.shape[-1]**0.5")],
    "scale-by-length": [(SCALE, "scale = max(S, 1)**-0.5")],
    "constant-scale": [(SCALE, "scale = 0.125")],
    "scale-ignored": [(SCALE, "scale = q.shape[-1]**-0.5")],
    "softmax-over-queries": [(WEIGHTS, "weights = softmax(logits, -2)[..., :S]"), UNGUARDED],
    "softmax-over-heads": [(WEIGHTS, "weights = softmax(logits, 1)[..., :S]"), UNGUARDED],
    "softmax-over-batch": [(WEIGHTS, "weights = softmax(logits, 0)[..., :S]"), UNGUARDED],
    "softmax-twice": [(WEIGHTS, "weights = softmax(softmax(logits)[..., :S])")],
    "softmax-missing": [(WEIGHTS, "weights = np.where(visible, scores, 0)")],
    "sum-not-divided": [("return weights / np.where(total > 0, total, 1)", "return weights")],
    "scale-after-softmax": [
        (SCALE, "scale = 1.0"),
        (WEIGHTS, "weights = softmax(logits)[..., :S] * q.shape[-1]**-0.5"),
    ],
    "softmax-overflow": [("np.exp(scores - peak(scores, axis))", "np.exp(scores)")],
    "no-mask": [(CAUSAL, "pass\n")],
    "no-mask/mask": [(MASK, "pass")],
    "inverted-mask": [(MASK, "masks.append(mask == 0)")],
    "transposed-mask": [(MASK, "masks.append(np.swapaxes(mask, -1, -2) != 0)")],
    "transposed-mask/causal": [(CAUSAL, "masks.append(j >= i)\n")],
    "missing-diagonal": [(CAUSAL, "masks.append(j < i)\n")],
    "one-token-ahead": [(CAUSAL, "masks.append(j <= i + 1)\n")],
    "zero-times-infinity": [(FILL, "scores = scores + ~visible * -np.inf if masks else scores")],
    "mask-after-softmax": [(FILL, ""), (WEIGHTS, "weights = softmax(logits)[..., :S] * visible")],
    "mask-added-as-zero-one": [(FILL, "scores = scores + visible")],
    "masked-with-zero": [(FILL, "scores = scores * visible")],
    "weak-mask-value": [(FILL, "scores = np.where(visible, scores, -5.0)")],
    "mask-scaled-too": [("scores = scores + bias", "scores = scores + bias * scale")],
    "softcap-after-mask": [
        (CAP, "pass"),
        (
            FILL,
            FILL
            + '\n    cap = case["softcap"]\n    scores = scores if cap is None else cap * np.tanh(scores / cap)',
        ),
    ],
    "softcap-not-multiplied": [(CAP, 'scores = np.tanh(scores / case["softcap"])')],
    "softcap-dropped": [(CAP, "pass")],
    "padded-keys-leak": [(PADDING, "pass")],
    "mask-of-first-item": [(PADDING, "masks.append(padding[:1, None, None, :] != 0)")],
    "mask-tiled-over-heads": [
        (PADDING, "masks.append(np.tile(padding, (H, 1)).reshape(B, H, 1, S) != 0)"),
    ],
    "masks-joined-by-or": [
        ("visible = np.ones((B, H, T, S), bool)", "visible = np.full((B, H, T, S), not masks)"),
        ("visible = visible & part", "visible = visible | part"),
    ],
    "window-off-by-one": [(WINDOW, f"{WINDOW} - 1")],
    "window-off-by-one/less": [(WINDOW, f"{WINDOW} + 1")],
    "window-dropped": [(f"masks.append({WINDOW})", "pass")],
    "right-window-ignored": [('masks.append(j <= i + case["ahead"])', "pass")],
    "top-left-causal": [(CAUSAL, "masks.append(j <= i - S + T)\n")],
    "square-mask-sliced-by-columns": [(CAUSAL, "masks.append(j <= (i if S == T else S))\n")],
    "grouped-heads-tiled": [(GROUPS, "k, v = np.tile(k, (1, H // G, 1, 1)), np.tile(v, (1, H // G, 1, 1))")],
    "grouped-heads-tiled/packed": [
        (
            GROUPS,
            "k, v = (np.tile(x, (1, H // G, 1, 1)) if case['lengths'] else np.repeat(x, H // G, 1) for x in (k, v))",
        )
    ],
    "top-left-causal/packed": [(CAUSAL, "masks.append(j <= (i - S + T if case['lengths'] else i))\n")],
    "sink-dropped": [("if sinks is not None:", "if False:")],
    "sink-added-twice": [(SINKS, "np.broadcast_to(sinks[:, None, None], (B, H, T, 2))")],
    "sink-of-another-head": [(SINKS, SINKS.replace("sinks[", "np.roll(sinks, -1)["))],
    "key-value-swapped": [(SCORES, f"k, v = v, k\n    {SCORES}")],
    "query-key-swapped": [(SIZES, f"q, k = k, q\n    {SIZES}")],
    "merge-without-lse": [
        (WEIGHTS, f"weights = np.concatenate([softmax(x) for x in {BLOCKS}], -1)[..., :S] / -(-S // 16)"),
    ],
    "stale-keys": [
        (
            GROUPS,
            GROUPS
            + "\n    old = np.where(np.arange(S) >= 16, np.arange(S) - 16, np.arange(S))\n    k, v = k[:, :, old], v[:, :, old]",
        )
    ],
    "block-not-rescaled": [
        (WEIGHTS, "weights = stale(logits)[..., :S]"),
        ("def packed(", f"{STALE}\n\ndef packed("),
    ],
    "splits-merged-in-wrong-base": [
        (WEIGHTS, "weights = remerged(logits)[..., :S]"),
        ("def packed(", f"{REMERGED}\n\ndef packed("),
    ],
    "always-causal": [('if case["causal"]:', "if True:")],
    "one-projection": [(SCORES, f"v = k\n    {SCORES}")],
    "roles-shuffled": [(SCORES, f"q, k, v = k, v, q\n    {SCORES}")],
    "batch-items-mixed": [
        (
            SIZES,
            f"batch = len(q)\n    q, k, v = (x.swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]) for x in (q, k, v))\n    {SIZES}",
        ),
        (
            "return weights @ v, lse",
            "return (weights @ v).reshape(H, batch, T // batch, -1).swapaxes(0, 1), lse",
        ),
    ],
    "empty-row-nan": [("np.where(total > 0, total, 1)", "total")],
    "lse-base-2": [("peak(scores)[..., 0]\n", "peak(scores)[..., 0]\n        lse = lse / np.log(2)\n")],
    "precision-lost": [
        (
            OUTPUT,
            f"output = np.round(output * 8) / 8 if 'float16' in case['dtype'] else output\n        {OUTPUT}",
        ),
    ],
    "sequences-attend-to-each-other": [
        (
            "def packed(case, q, k, v, sinks=None):",
            "def packed(case, q, k, v, sinks=None):\n    case = case | {'lengths': {'queries': [len(q)], 'keys': [len(k)]}}",
        ),
    ],
    "cu-seqlens-off-by-one": [(SLICES, "q[a : a + n], k[b : b + m + 1], v[b : b + m + 1]")],
    "cu-seqlens-off-by-one/short": [(SLICES, "q[a : a + n], k[b : b + m - 1], v[b : b + m - 1]")],
    "cache-ignored": [(APPENDED, "keys, values = k[:, :, new], v[:, :, new]")],
    "cached-key-lost": [
        (
            CALL,
            CALL.replace(
                "keys, values, padding=there",
                "keys[:, :, bool(start) :], values[:, :, bool(start) :], padding=None if there is None else there[:, bool(start) :]",
            ),
        )
    ],
    "new-token-unseen": [
        (
            CALL,
            "seen = slice(0, start or n)\n        "
            + CALL.replace(
                "keys, values, padding=there",
                "keys[:, :, seen], values[:, :, seen], padding=None if there is None else there[:, seen]",
            ),
        ),
    ],
    "cache-half-written": [(APPENDED, APPENDED.replace("[values,", "[values * 0,"))],
    "cache-in-wrong-order": [
        (
            APPENDED,
            "keys, values = np.concatenate([k[:, :, new], keys], 2), np.concatenate([v[:, :, new], values], 2)",
        )
    ],
    "cache-roles-swapped": [
        (APPENDED, "keys, values = (values, keys) if start else (keys, values)\n        " + APPENDED),
    ],
}

UNNAMED = {
    "only 64 numbers of a head are read": (
        [(SCORES, f"q, k = q[..., :64], k[..., :64]\n    {SCORES}")],
        ["wide"],
    ),
    "the maximum begins at 0": ([("highest, 0)", "highest, 0).clip(0)")], []),
    "the first head's bias": (
        [("scores = scores + bias", "scores = scores + (bias if bias.ndim < 3 else bias[:1])")],
        ["bias", "grouped"],
    ),
    "the cap before the scale": (
        [(CAP, 'scores = scale * case["softcap"] * np.tanh(scores / scale / case["softcap"])')],
        ["softcap"],
    ),
}
"""Kernels that are wrong in a corner: their lines, and the features of the cases that show it, if any do."""
