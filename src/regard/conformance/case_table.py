"""The cases, and the pairs of features that they test.

A kernel may be right with a window and right with packed sequences, and wrong with both. So every two
features are in one case at least; `UNTESTED` names the pairs that are not, each with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from regard.conformance.case_draw import draw_case
from regard.conformance.cases import ConformanceCase

CAUSAL: dict[str, Any] = {"causal": True}
GROUPED: dict[str, Any] = {"H": 6, "G": 2}  # three query heads for each key/value head
DECODE: dict[str, Any] = {"T": 5, "S": 12}
CROSS: dict[str, Any] = {"T": 5, "S": 9}
MORE: dict[str, Any] = {"T": 9, "S": 5}
LONG: dict[str, Any] = {"B": 1, "H": 2, "G": 1, "T": 20, "S": 150}  # several blocks
WIDE: dict[str, Any] = {"B": 1, "D": 130, "E": 70}
LEFT: dict[str, Any] = {"padding": ((0, 7), (3, 7))}  # the padding comes first, as in generation
RIGHT: dict[str, Any] = {"padding": ((0, 6), (0, 4))}
PACKED = (5, 3, 6)
PACKED_CROSS = (PACKED, (7, 3, 11))
PIECES = (3, 1, 2, 2)

UNTESTED = {
    frozenset({"causal", "ahead"}): "a causal query sees no later key",
    frozenset({"cache", "ahead"}): "a later piece is not there yet",
    **{
        frozenset({"cache", name}): "the pieces have as many queries as keys"
        for name in ("fewer queries", "more queries")
    },
    **{
        frozenset({"cache", name}): "what belongs to every query would have to come in pieces, too"
        for name in ("mask", "bias", "packed")
    },
    **{
        frozenset({"packed", name}): "kernels of packed sequences take lengths instead"
        for name in ("mask", "bias", "padding")
    },
}
"""Pairs of features that no case has together, each with the reason."""


def make_cases(seed: int = 0) -> list[ConformanceCase]:
    """Return all cases; another seed draws other numbers."""
    case = partial(draw_case, seed)
    low = case("low-scores", "scores whose exponentials are all 0 in float32", large="q", G=2, **CAUSAL)
    q, k = low.question.q, low.question.k
    return [
        # Version 1 of the format: most have one feature.
        case("plain"),
        case("square", "values as wide as keys", D=10, E=10),
        case("causal", **CAUSAL),
        case("decode", "the queries are the last of the keys", T=3, S=8, **CAUSAL),
        case("one-query", "as in generation", T=1, S=8, **CAUSAL),
        case("cross", **CROSS),
        case("mask", mask="TS"),
        case("item-mask", "a mask for each item", mask="B1TS"),
        case("padding", **RIGHT),
        case("bias", "numbers that are added to the scores", bias="TS"),
        case("causal-padding", **CAUSAL, **RIGHT),
        case("causal-mask", mask="TS", **CAUSAL),
        case("window", "the 4 latest keys", T=12, window=4, **CAUSAL),
        case("window-sides", "a window to both sides", T=12, window=4, ahead=2),
        case("softcap", softcap=1.5, **CAUSAL),
        case("sinks", "a sink logit for each head", sinks=True, **CAUSAL),
        case("grouped", "two key/value heads for four query heads", G=2, **CAUSAL),
        case("one-group", "one key/value head for four query heads", G=1, **CAUSAL),
        case("grouped-sinks", G=2, sinks=True),
        case("several-blocks", B=1, H=1, T=150, **CAUSAL),
        case("packed", "sequences one after the other", H=2, lengths=(PACKED, PACKED), **CAUSAL),
        case("packed-cross", "other numbers of keys than queries", H=2, lengths=PACKED_CROSS),
        case("cache", "tokens in pieces", T=8, E=10, pieces=PIECES, **CAUSAL),
        case("scale", "a scale that is not 1/√D", scale=0.5),
        case("empty-rows", "queries that see no key: their output is 0", mask="TS", empty=(0, 3)),
        case("large-scores", "scores whose exponentials overflow float32", large="q", **CAUSAL),
        *_plain_in_half(partial(case, dtype="float16"), "float16"),
        *_plain_in_half(partial(case, dtype="bfloat16"), "bfloat16"),
        # Since version 2: what models and libraries have together.
        case("one-token", "one query and one key", T=1, **CAUSAL),
        case("softcap-window", "Gemma 2", softcap=1.5, window=4, scale=0.5, **CAUSAL, **GROUPED, **DECODE),
        case("sinks-window", "gpt-oss", sinks=True, window=4, **CAUSAL, **GROUPED, **DECODE),
        case(
            "sinks-padding", "queries that see nothing but the sink", sinks=True, **LEFT, **CAUSAL, **GROUPED
        ),
        case("sinks-mask", sinks=True, mask="TS", bias="TS", softcap=1.5, scale=0.5, **CROSS),
        case("left-padding", "padding before the tokens: queries that see no key", **LEFT, **CAUSAL),
        case("empty-item", "an item of padding alone", padding=((0, 6), (0, 0)), **CROSS, **GROUPED),
        case(
            "padding-mask", padding=((0, 7), (2, 9)), mask="B1TS", softcap=1.5, scale=0.5, **CROSS, **GROUPED
        ),
        case("head-mask", "a mask for each head", mask="BHTS", G=2, **CROSS),
        case(
            "head-bias", "ALiBi: added numbers for each head", bias="HTS", scale=0.5, G=2, **CROSS, **CAUSAL
        ),
        case("bias-padding", bias="TS", mask="TS", softcap=1.5, **LEFT, **CAUSAL),
        case("bias-window", bias="TS", window=4, **CAUSAL, **DECODE),
        case("window-mask", mask="TS", padding=((0, 12), (5, 12)), window=4, T=12, **CAUSAL, **GROUPED),
        case("window-decode", window=4, **CAUSAL, **DECODE),
        case("window-one-query", "as in generation", window=4, T=1, S=12, **CAUSAL),
        case("window-of-one", "every query sees its own key alone", window=1, **CAUSAL),
        case("window-of-all", "a window that is wider than the text", window=20, **CAUSAL),
        case("window-back", "a window to one side", window=4, T=12),
        case("window-back-decode", "a window to one side, fewer queries than keys", window=4, **DECODE),
        case("window-sides-decode", window=4, ahead=2, softcap=1.5, scale=0.5, **GROUPED, **DECODE),
        case(
            "ahead",
            "two later keys and all earlier ones",
            ahead=2,
            padding=((0, 11), (2, 12)),
            mask="TS",
            bias="TS",
            **DECODE,
        ),
        case("ahead-sinks", ahead=2, window=4, sinks=True, T=12),
        case("more-queries", **MORE),
        case("more-causal", "the first queries see no key", softcap=1.5, **MORE, **CAUSAL, **GROUPED),
        case("more-window", "the first queries see no key", window=3, ahead=1, **MORE, **GROUPED),
        case("more-sinks", sinks=True, scale=0.5, **MORE, **CAUSAL),
        case("more-mask", mask="TS", padding=((0, 5), (0, 3)), bias="TS", **MORE),
        case("wide", G=2, **WIDE, **CAUSAL),
        case(
            "wide-window",
            window=4,
            ahead=2,
            softcap=1.5,
            mask="TS",
            padding=((2, 12),),
            bias="TS",
            scale=0.5,
            **WIDE,
            **DECODE,
        ),
        case("wide-sinks", sinks=True, **WIDE, **MORE, **CAUSAL),
        case("blocks-mask", mask="TS", padding=((30, 140),), **LONG),
        case("blocks-window", window=70, softcap=1.5, scale=0.5, **CAUSAL, **LONG),
        case("blocks-sides", window=70, ahead=9, sinks=True, D=70, E=70, **LONG),
        case("blocks-bias", bias="TS", B=1, H=1, T=90, S=70, **CAUSAL),
        replace(low, question=replace(low.question, q=-q.abs(), k=k.abs())),
        case("large-sinks", D=70, G=2, window=4, sinks=True, large="q sinks", **CAUSAL, **DECODE),
        case("large-softcap", softcap=200.0, mask="TS", empty=(0, 3), scale=0.5, large="q", **MORE),
        case("large-bias", bias="TS", ahead=9, padding=((30, 140),), large="bias", **LONG | {"H": 1}),
        *_packed(case),
        *_cached(case),
        *_half(partial(case, dtype="float16"), partial(case, dtype="bfloat16")),
    ]


def _plain_in_half(case: Any, dtype: str) -> Iterator[ConformanceCase]:
    yield case(f"{dtype}-plain")
    yield case(f"{dtype}-causal", **CAUSAL)


def _packed(case: Any) -> Iterator[ConformanceCase]:
    """Yield the cases of packed sequences."""
    grouped = {"G": 2, "lengths": PACKED_CROSS}
    yield case("packed-grouped", **CAUSAL, **grouped | {"lengths": (PACKED, PACKED)})
    yield case("packed-decode", "the queries are the last of the keys", scale=0.5, **CAUSAL, **grouped)
    yield case("packed-window", window=4, softcap=1.5, **CAUSAL, **grouped)
    yield case("packed-window-sides", H=2, window=3, ahead=1, lengths=PACKED_CROSS)
    yield case("packed-sinks", window=4, sinks=True, **CAUSAL, **grouped)
    yield case("packed-more", "the first queries see no key", H=2, lengths=((6, 4, 3), (3, 4, 5)), **CAUSAL)
    yield case("packed-empty", "one has no queries, one no keys", H=2, lengths=((4, 0, 3), (6, 2, 0)))
    yield case("packed-blocks", H=2, G=1, D=70, lengths=((70, 2, 33), (100, 2, 33)), **CAUSAL)
    yield case("packed-large", H=2, large="q", lengths=PACKED_CROSS, **CAUSAL)


def _cached(case: Any) -> Iterator[ConformanceCase]:
    """Yield the cases of tokens that arrive in pieces, with a cache."""
    pieces = {"T": 8, "E": 10, "pieces": PIECES, "causal": True}
    yield case("cache-window", window=4, **GROUPED, **pieces)
    yield case("cache-sinks", softcap=1.5, sinks=True, scale=0.5, **pieces)
    yield case("cache-padding", padding=((0, 8), (2, 8)), **pieces)
    yield case("cache-blocks", B=1, H=1, T=70, D=70, E=70, pieces=(40, 1, 29), **CAUSAL)
    yield case("cache-large", large="q", **pieces)


def _half(float16: Any, bfloat16: Any) -> Iterator[ConformanceCase]:
    """Yield the cases of several features in half precision."""
    yield float16("float16-window", window=4, softcap=1.5, scale=0.5, **CAUSAL, **GROUPED, **DECODE)
    yield float16("float16-mask", mask="TS", bias="TS", **MORE)
    yield float16("float16-cache", T=8, E=10, pieces=PIECES, **CAUSAL)
    yield bfloat16("bfloat16-sinks", sinks=True, **LEFT, **CAUSAL)
    yield bfloat16("bfloat16-packed", G=2, window=4, ahead=1, lengths=PACKED_CROSS)
    yield bfloat16("bfloat16-blocks", **LONG | {"D": 130}, **CAUSAL)
    yield bfloat16("bfloat16-large", large="q", **CAUSAL)


def untested_pairs(cases: Iterable[ConformanceCase]) -> set[frozenset[str]]:
    """Return the pairs of features that no case has together."""
    features = [set(case.features()) for case in cases]
    every = sorted(set().union(*features))
    return {
        frozenset(pair)
        for pair in itertools.combinations(every, 2)
        if not any(set(pair) <= f for f in features)
    }
