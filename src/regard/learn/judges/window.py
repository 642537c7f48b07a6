"""Lesson 14: a mask with a window and sinks, and a cache that evicts what the mask hides."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.lesson import UsualMistake

LAYERS, WINDOW = 3, 4
NEAR = "near = key > query - window: the query's own key is one of them"
VISIBLE = "causal & (near | first)"
QUERY = "query = torch.arange(S - T, S)[:, None]: the queries are the last T of S tokens"
MASK_LINES = (
    "query = torch.arange(S - T, S)[:, None]; near = key > query - window; first = key < sinks; "
    "return causal & (near | first)"
)
KEPT = "torch.cat([k[..., :sinks, :], k[..., -window:, :]], dim=-2), and v the same"


def visible(T: int, S: int, window: int, sinks: int, how: str = "") -> Tensor:
    """Return the mask; `how` is a way to go wrong."""
    query = torch.arange(T)[:, None] if how == "top left" else torch.arange(S - T, S)[:, None]
    key = torch.arange(S)
    causal, first = key <= query, key < sinks + (how == "one sink more")
    causal = key < query if how == "itself hidden" else causal
    near = key > query - window - {"wide": 1, "narrow": -1}.get(how, 0)
    return {
        "future": near | first,
        "sinks in the future": (causal & near) | first,
        "both": causal & near & first,
        "no window": causal.clone(),
        "no sinks": causal & near,
        "inverted": ~(causal & (near | first)),
    }.get(how, causal & (near | first))


def evicted(k: Tensor, v: Tensor, window: int, sinks: int, how: str = "") -> tuple[Tensor, Tensor]:
    """Return what a cache keeps; `how` is a way to go wrong."""
    S = k.shape[-2]
    first, latest = list(range(sinks)), list(range(S))[-window:]
    kept = {
        "no sinks": latest,
        "no sinks, as many": list(range(S))[-window - sinks :],
        "oldest": list(range(S))[: window + sinks],
        "latest first": latest + first,
        "sinks in the window": first + latest[sinks:],
    }.get(how, first + latest)
    if sinks + window >= S and how != "short too":
        kept = list(range(S))
    return k[..., kept, :], v[..., kept, :]


MASK = FunctionTask(
    "streaming_mask",
    visible,
    lambda: (
        Case("for 8 tokens, window 3, no sinks", (8, 8, 3, 0)),
        Case("for 8 tokens, window 3, 2 sinks", (8, 8, 3, 2)),
        Case("for 3 new tokens after 6, window 4, 1 sink", (3, 9, 4, 1)),
    ),
    (Result("mask", "(T, S)", MASK_LINES),),
    (
        WrongWay(
            partial(visible, how="wide"),
            "window-off-by-one",
            "A query sees window + 1 keys: its own is one of the window.",
            NEAR,
        ),
        WrongWay(
            partial(visible, how="one sink more"),
            said="There is one sink too many: the first `sinks` keys are those below `sinks`.",
            hint="first = key < sinks",
        ),
        WrongWay(
            partial(visible, how="itself hidden"),
            "missing-diagonal",
            "No query sees its own key, and the first sees none at all.",
            "causal = key <= query",
        ),
        WrongWay(
            partial(visible, how="narrow"), "window-off-by-one", "A query sees only window − 1 keys.", NEAR
        ),
        WrongWay(
            partial(visible, how="top left"),
            "top-left-causal",
            "Right for a whole text; new tokens after a cache get the windows of the first tokens.",
            QUERY,
        ),
        WrongWay(partial(visible, how="no window"), "window-dropped", hint=NEAR),
        WrongWay(partial(visible, how="no sinks"), "sinks-evicted"),
        WrongWay(
            partial(visible, how="future"),
            "no-mask",
            "Later keys are visible: a window alone has no end on the right.",
            VISIBLE,
        ),
        WrongWay(
            partial(visible, how="sinks in the future"),
            "masks-joined-by-or",
            "The first tokens see sinks that stand after them: the sinks have to be causal too.",
            VISIBLE,
        ),
        WrongWay(
            partial(visible, how="both"),
            said="a key has to be near and first at once, which few are: either is enough",
            hint=VISIBLE,
        ),
        WrongWay(partial(visible, how="inverted"), "inverted-mask", hint=f"{VISIBLE}: True means visible"),
    ),
    "the mask of a text without an end: each row has at most sinks + window keys.",
    (
        ("must match the size", f"one row for each query: {QUERY}"),
        ("Boolean value", f"& and | join masks number by number, `and` and `or` cannot: {VISIBLE}"),
    ),
)
EVICT = FunctionTask(
    "evict",
    evicted,
    lambda: (
        Case("with 9 keys, window 4, 2 sinks", (draw(2, 3, 9, 4, seed=0), draw(2, 3, 9, 4, seed=1), 4, 2)),
        Case("with 5 keys, window 4, 2 sinks", (draw(2, 3, 5, 4, seed=2), draw(2, 3, 5, 4, seed=3), 4, 2)),
    ),
    (Result("k", "(B, H, keys that stay, D)", KEPT), Result("v", "(B, H, keys that stay, D)", KEPT)),
    (
        WrongWay(
            partial(evicted, how="short too"),
            said="a cache with fewer keys than sinks + window stays as it is; here a key is kept twice",
            hint="before these lines: if k.shape[-2] <= sinks + window: return k, v",
        ),
        WrongWay(partial(evicted, how="no sinks"), "sinks-evicted", hint=KEPT),
        WrongWay(partial(evicted, how="no sinks, as many"), "sinks-evicted", hint=KEPT),
        WrongWay(partial(evicted, how="oldest"), said="the oldest keys are kept, not the latest", hint=KEPT),
        WrongWay(
            partial(evicted, how="latest first"),
            "cache-in-wrong-order",
            "The latest keys stand before the first ones. A key's place in the cache is its position, so "
            "that the text would begin with its end.",
            KEPT,
        ),
        WrongWay(
            partial(evicted, how="sinks in the window"),
            said="sinks and window together are `window` keys; the sinks come in addition",
            hint=KEPT,
        ),
    ),
    "a cache that never grows: the first keys and the latest ones.",
    (("Sizes of tensors must match", f"the keys are on axis -2: {KEPT}"),),
)
SAID = f"the farthest token that {LAYERS} layers with a window of {WINDOW} can read, counted backwards,"
TASKS = (
    MASK.task(),
    EVICT.task(),
    guess_task(
        "tokens_back_after_3_layers",
        LAYERS * (WINDOW - 1),
        SAID,
        within=0.0,
        answers_to={
            3.0: "3 tokens back is what one layer reaches; the second reads tokens that have read themselves",
            12.0: "3 layers times 4 keys counts each token itself, which is no step back",
            10.0: "that counts the token itself as well: how many tokens *back* is it?",
        },
        hint="in each layer one more step, as long as a window reaches back without the token itself",
    ),
)
USUAL_MISTAKES = (
    UsualMistake("window-off-by-one", "key > query - window", "key >= query - window"),
    UsualMistake("top-left-causal", "torch.arange(S - T, S)", "torch.arange(T)"),
    UsualMistake("sinks-evicted", "causal & (near | first)", "causal & near"),
    UsualMistake("masks-joined-by-or", "causal & (near | first)", "causal & near | first"),
)
