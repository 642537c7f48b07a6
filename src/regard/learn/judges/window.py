"""Lesson 14: a mask with a window and sinks, and a cache that evicts what the mask hides."""

from __future__ import annotations

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw, usual
from regard.learn.judges.tables.guesses import guess_task

LAYERS, WINDOW = 3, 4
VISIBLE = "causal & (near | first)"
QUERY = "query = torch.arange(S - T, S)[:, None]: the queries are the last T of S tokens"
KEPT = "torch.cat([k[..., :sinks, :], k[..., -window:, :]], dim=-2), and v the same"
FIRST_AND_LATEST = "k[..., :sinks, :], k[..., -window:, :]"

MASK = FunctionTask(
    "window",
    "streaming_mask",
    lambda: (
        Case("for 8 tokens, window 3, no sinks", (8, 8, 3, 0)),
        Case("for 8 tokens, window 3, 2 sinks", (8, 8, 3, 2)),
        Case("for 3 new tokens after 6, window 4, 1 sink", (3, 9, 4, 1)),
    ),
    (Result("mask", "(T, S)"),),
    (
        WrongWay(
            "key > query - window",
            "key >= query - window",
            "window-off-by-one",
            "A query sees window + 1 keys: its own is one of the window.",
            "near = key > query - window: the query's own key is one of them",
        ),
        WrongWay(
            "key < sinks",
            "key <= sinks",
            said="There is one sink too many: the first `sinks` keys are those below `sinks`.",
        ),
        WrongWay(
            "key <= query",
            "key < query",
            "missing-diagonal",
            "No query sees its own key, and the first sees none at all.",
        ),
        WrongWay(
            "key > query - window",
            "key > query - window + 1",
            "window-off-by-one",
            "A query sees only window − 1 keys.",
        ),
        WrongWay(
            "torch.arange(S - T, S)",
            "torch.arange(T)",
            "top-left-causal",
            "Right for a whole text; new tokens after a cache get the windows of the first tokens.",
            QUERY,
        ),
        WrongWay(
            VISIBLE,
            "causal & (near & (key < query) | first)",
            "missing-diagonal",
            "The window ends before the query's own key: no token sees itself, unless it is a sink.",
        ),
        WrongWay(
            VISIBLE,
            "causal & (near & (query >= window - 1) | first)",
            said="the window of the first queries begins before the text: a start below 0 counts from the "
            "end of a row",
            hint="max(0, …) where a window would begin before the first key",
        ),
        WrongWay(VISIBLE, "causal", "window-dropped"),
        WrongWay(VISIBLE, "causal & near", "sinks-evicted"),
        WrongWay(
            VISIBLE,
            "near | first",
            "no-mask",
            "Later keys are visible: a window alone has no end on the right.",
        ),
        WrongWay(
            VISIBLE,
            "causal & near | first",
            "masks-joined-by-or",
            "The first tokens see sinks that stand after them: the sinks have to be causal too.",
        ),
        WrongWay(
            VISIBLE,
            "causal & near & first",
            said="a key has to be near and first at once, which few are: either is enough",
        ),
        WrongWay(VISIBLE, f"~({VISIBLE})", "inverted-mask", hint=f"return {VISIBLE}: True means visible"),
    ),
    "the mask of a text without an end: each row has at most sinks + window keys.",
    (
        ("must match the size", f"one row for each query: {QUERY}"),
        ("Boolean value", f"& and | join masks number by number, `and` and `or` cannot: {VISIBLE}"),
    ),
)
EVICT = FunctionTask(
    "window",
    "evict",
    lambda: (
        Case("with 9 keys, window 4, 2 sinks", (draw(2, 3, 9, 4, seed=0), draw(2, 3, 9, 4, seed=1), 4, 2)),
        Case("with 5 keys, window 4, 2 sinks", (draw(2, 3, 5, 4, seed=2), draw(2, 3, 5, 4, seed=3), 4, 2)),
    ),
    (Result("k", "(B, H, keys that stay, D)", KEPT), Result("v", "(B, H, keys that stay, D)", KEPT)),
    (
        WrongWay(
            "k.shape[-2] <= sinks + window",
            "False",
            said="a cache with fewer keys than sinks + window stays as it is; here a key is kept twice",
            hint="before these lines: if k.shape[-2] <= sinks + window: return k, v",
        ),
        *(
            WrongWay(FIRST_AND_LATEST, kept, mistake, said, KEPT).for_values_too()
            for kept, mistake, said in (
                ("k[..., -window:, :]", "sinks-evicted", ""),
                ("k[..., -window - sinks :, :]", "sinks-evicted", ""),
                ("k[..., : window + sinks, :]", "", "the oldest keys are kept, not the latest"),
                (
                    "k[..., -window:, :], k[..., :sinks, :]",
                    "cache-in-wrong-order",
                    "The latest keys stand before the first ones. A key's place in the cache is its "
                    "position, so that the text would begin with its end.",
                ),
                (
                    "k[..., :sinks, :], k[..., -window - 1 :, :]",
                    "window-off-by-one",
                    "One key too many is kept: the latest are `window` keys.",
                ),
                (
                    "k[..., :sinks, :], k[..., -window:-1, :]",
                    "window-off-by-one",
                    "The newest key is lost: a slice ends before its end.",
                ),
                (
                    "k[..., :sinks, :], k[..., -window - sinks :, :]",
                    "",
                    "The latest are `window` keys; the sinks come in addition and are not counted twice.",
                ),
                (
                    "k[..., :sinks, :], k[..., sinks - window :, :]",
                    "",
                    "sinks and window together are `window` keys; the sinks come in addition",
                ),
            )
        ),
    ),
    "a cache that never grows: the first keys and the latest ones.",
    (
        ("out of bounds", f"the keys are on axis -2, after the texts and the heads: {KEPT}"),
        ("Sizes of tensors must match", f"the keys are on axis -2: {KEPT}"),
    ),
)
TASKS = (
    MASK.task(),
    EVICT.task(),
    guess_task(
        "tokens_back_after_3_layers",
        LAYERS * (WINDOW - 1),
        f"the farthest token that {LAYERS} layers with a window of {WINDOW} can read, counted backwards,",
        within=0.0,
        answers_to={
            3.0: "3 tokens back is what one layer reaches; the second reads tokens that have read themselves",
            12.0: "3 layers times 4 keys counts each token itself, which is no step back",
            10.0: "that counts the token itself as well: how many tokens *back* is it?",
        },
        hint="in each layer one more step, as long as a window reaches back without the token itself",
    ),
)
USUAL_MISTAKES = usual(
    (MASK, EVICT), "window-off-by-one", "top-left-causal", "sinks-evicted", "masks-joined-by-or"
)
