"""Cases of several features, as models and libraries have them together: since version 2 of the format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard.conformance.case_draw import HEADS, LARGE, TOKENS, CaseDraw, padding_mask
from regard.conformance.cases import ConformanceCase


def combine_features(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return all cases of several features."""
    return [*_combine(drawn), *_large(drawn), *_packed(drawn), *_cached(drawn), *_half(drawn)]


def _combine(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return cases in float32 of one call on plain tensors."""
    ask, visible, numbers = drawn.ask, drawn.visible, drawn.numbers
    causal: dict[str, Any] = {"causal": True}
    grouped: dict[str, Any] = {"H": 6, "G": 2}  # three query heads for each key/value head
    decode: dict[str, Any] = {"T": 5, "S": 12}
    long: dict[str, Any] = {"B": 1, "H": 2, "G": 1, "T": 20, "S": 150}
    left = padding_mask(TOKENS, (0, 7), (3, 7))  # the padding comes first, as in generation
    empty_item = padding_mask(9, (0, 6), (0, 0))
    return [
        ConformanceCase(ask("one-token", T=1, **causal), "one query and one key"),
        ConformanceCase(
            ask("softcap-window", softcap=1.5, window=4, **causal, **grouped, **decode),
            "Gemma 2: soft cap, window, grouped heads, fewer queries than keys",
            scale=0.5,
        ),
        ConformanceCase(
            ask("sinks-window", sinks=numbers("sinks-window", 6), window=4, **causal, **grouped, **decode),
            "gpt-oss: sink logits, window, grouped heads, fewer queries than keys",
        ),
        ConformanceCase(
            ask("sinks-padding", sinks=numbers("sinks-padding", 6), padding=left, **causal, **grouped),
            "sink logits, and padding before the tokens: queries that see nothing but the sink",
        ),
        ConformanceCase(
            ask(
                "sinks-mask",
                sinks=numbers("sinks-mask", 4),
                mask=visible("sinks-mask", 5, 9),
                bias=numbers("sinks-mask bias", 5, 9),
                softcap=1.5,
                T=5,
                S=9,
            ),
            "sink logits, a mask, added numbers and a soft cap",
            scale=0.5,
        ),
        ConformanceCase(
            ask("left-padding", padding=left, **causal), "padding before the tokens: queries that see no key"
        ),
        ConformanceCase(
            ask("empty-item", padding=empty_item, T=5, S=9, **grouped), "an item of padding alone"
        ),
        ConformanceCase(
            ask(
                "padding-mask",
                padding=padding_mask(9, (0, 7), (2, 9)),
                mask=visible("padding-mask", 2, 1, 5, 9),
                softcap=1.5,
                T=5,
                S=9,
                **grouped,
            ),
            "padding, a mask for each item, a soft cap, grouped heads",
            scale=0.5,
        ),
        ConformanceCase(
            ask("head-mask", mask=visible("head-mask", 2, 4, 5, 9), T=5, S=9, G=2), "a mask for each head"
        ),
        ConformanceCase(
            ask("head-bias", bias=numbers("head-bias", 4, 5, 9), T=5, S=9, G=2, **causal),
            "ALiBi: numbers for each head that are added to the scores, causal",
            scale=0.5,
        ),
        ConformanceCase(
            ask(
                "bias-padding",
                bias=numbers("bias-padding", 7, 7),
                padding=left,
                mask=visible("bias-padding", 7, 7),
                softcap=1.5,
                **causal,
            ),
            "added numbers, a mask, padding before the tokens, a soft cap, causal",
        ),
        ConformanceCase(
            ask("bias-window", bias=numbers("bias-window", 5, 12), window=4, **causal, **decode),
            "added numbers and a window",
        ),
        ConformanceCase(
            ask(
                "window-mask",
                mask=visible("window-mask", 12, 12),
                padding=padding_mask(12, (0, 12), (5, 12)),
                window=4,
                T=12,
                **causal,
                **grouped,
            ),
            "a window, a mask, and padding before the tokens",
        ),
        ConformanceCase(
            ask("window-decode", window=4, **causal, **decode), "a window, fewer queries than keys"
        ),
        ConformanceCase(
            ask("window-one-query", window=4, T=1, S=12, **causal), "a window and one query, as in generation"
        ),
        ConformanceCase(ask("window-of-one", window=1, **causal), "every query sees its own key alone"),
        ConformanceCase(ask("window-of-all", window=20, **causal), "a window that is wider than the text"),
        ConformanceCase(ask("window-back", window=4, T=12), "a window to one side, not causal"),
        ConformanceCase(
            ask("window-back-decode", window=4, **decode), "a window to one side, fewer queries than keys"
        ),
        ConformanceCase(
            ask("window-sides-decode", window=4, ahead=2, softcap=1.5, **grouped, **decode),
            "a window to both sides, fewer queries than keys",
            scale=0.5,
        ),
        ConformanceCase(
            ask(
                "ahead",
                ahead=2,
                padding=padding_mask(12, (0, 11), (2, 12)),
                mask=visible("ahead", 5, 12),
                bias=numbers("ahead", 5, 12),
                **decode,
            ),
            "two later keys and all earlier ones, with a mask, padding and added numbers",
        ),
        ConformanceCase(
            ask("ahead-sinks", ahead=2, window=4, sinks=numbers("ahead-sinks", 4), T=12),
            "a window to both sides, with sink logits",
        ),
        ConformanceCase(ask("more-queries", T=9, S=5), "more queries than keys, no mask"),
        ConformanceCase(
            ask("more-causal", T=9, S=5, softcap=1.5, **causal, **grouped),
            "more queries than keys, causal: the first queries see no key",
        ),
        ConformanceCase(
            ask("more-window", T=9, S=5, window=3, ahead=1, **grouped),
            "more queries than keys in a window: the first queries see no key",
        ),
        ConformanceCase(
            ask("more-sinks", T=9, S=5, sinks=numbers("more-sinks", 4), **causal),
            "more queries than keys, causal, with sink logits",
            scale=0.5,
        ),
        ConformanceCase(
            ask(
                "more-mask",
                T=9,
                S=5,
                mask=visible("more-mask", 9, 5),
                padding=padding_mask(5, (0, 5), (0, 3)),
                bias=numbers("more-mask", 9, 5),
            ),
            "more queries than keys, with a mask, padding and added numbers",
        ),
        ConformanceCase(ask("wide", B=1, D=130, E=70, G=2, **causal), "heads that are 130 wide, grouped"),
        ConformanceCase(
            ask(
                "wide-window",
                B=1,
                D=130,
                E=70,
                window=4,
                ahead=2,
                softcap=1.5,
                mask=visible("wide-window", 5, 12),
                padding=padding_mask(12, (2, 12)),
                bias=numbers("wide-window", 5, 12),
                **decode,
            ),
            "heads that are 130 wide, with a window, a mask, padding and added numbers",
            scale=0.5,
        ),
        ConformanceCase(
            ask("wide-sinks", B=1, D=130, E=70, T=9, S=5, sinks=numbers("wide-sinks", 4), **causal),
            "heads that are 130 wide, with sink logits, more queries than keys",
        ),
        ConformanceCase(
            ask(
                "blocks-mask",
                mask=visible("blocks-mask", 20, 150),
                padding=padding_mask(150, (30, 140)),
                **long,
            ),
            "150 keys with a mask and padding",
        ),
        ConformanceCase(
            ask("blocks-window", window=70, softcap=1.5, **causal, **long),
            "150 keys with a window",
            scale=0.5,
        ),
        ConformanceCase(
            ask("blocks-sides", window=70, ahead=9, sinks=numbers("blocks-sides", 2), D=70, E=70, **long),
            "150 keys in a window to both sides, with sink logits",
        ),
        ConformanceCase(
            ask("blocks-bias", bias=numbers("blocks-bias", 90, 70), B=1, H=1, T=90, S=70, **causal),
            "70 keys and 90 queries, causal, with added numbers",
        ),
    ]


def _large(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return cases whose scores are far from 0."""
    low = drawn.ask("low-scores", G=2, causal=True)
    sinks = drawn.ask("large-sinks", T=5, S=12, D=70, G=2, window=4, causal=True)
    empty = drawn.visible("large-softcap", 9, 5)
    empty[[0, 3]] = False
    capped = drawn.ask("large-softcap", T=9, S=5, softcap=200.0, mask=empty)
    biased = drawn.ask("large-bias", B=1, H=1, T=20, S=150, ahead=9, padding=padding_mask(150, (30, 140)))
    logits, bias = drawn.numbers("large-sinks", HEADS), drawn.numbers("large-bias", 20, 150)
    return [
        ConformanceCase(
            replace(low, q=low.q.abs() * -LARGE, k=low.k.abs()),
            "scores whose exponentials are all 0 in float32",
            large=True,
        ),
        ConformanceCase(
            replace(sinks, q=sinks.q * LARGE, sinks=logits * 64),
            "sink logits whose exponentials overflow float32",
            large=True,
        ),
        ConformanceCase(
            replace(capped, q=capped.q * LARGE), "a soft cap of 200 on large scores", scale=0.5, large=True
        ),
        ConformanceCase(
            replace(biased, bias=bias * 64), "added numbers whose exponentials overflow float32", large=True
        ),
    ]


def _packed(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return cases of packed sequences."""
    ask = drawn.packed
    causal: dict[str, Any] = {"causal": True}
    grouped: dict[str, Any] = {"H": 4, "G": 2}
    queries, keys = (5, 3, 6), (7, 3, 11)
    large = ask("packed-large", queries, keys, H=2, **causal)
    return [
        ConformanceCase(
            ask("packed-grouped", queries, queries, **grouped, **causal), "packed, grouped heads"
        ),
        ConformanceCase(
            ask("packed-decode", queries, keys, **grouped, **causal),
            "packed, causal, the queries of each sequence are the last of its keys",
            scale=0.5,
        ),
        ConformanceCase(
            ask("packed-window", queries, keys, window=4, softcap=1.5, **grouped, **causal),
            "packed, with a window and a soft cap",
        ),
        ConformanceCase(
            ask("packed-window-sides", queries, keys, window=3, ahead=1, H=2),
            "packed, a window to both sides",
        ),
        ConformanceCase(
            ask(
                "packed-sinks",
                queries,
                keys,
                window=4,
                sinks=drawn.numbers("packed-sinks", 4),
                **grouped,
                **causal,
            ),
            "packed, with sink logits and a window",
        ),
        ConformanceCase(
            ask("packed-more", (6, 4, 3), (3, 4, 5), H=2, **causal),
            "packed, causal, a sequence with more queries than keys: its first queries see no key",
        ),
        ConformanceCase(
            ask("packed-empty", (4, 0, 3), (6, 2, 0), H=2),
            "packed, a sequence without queries and one without keys",
        ),
        ConformanceCase(
            ask("packed-blocks", (70, 2, 33), (100, 2, 33), H=2, G=1, D=70, **causal),
            "packed, sequences of several blocks",
        ),
        ConformanceCase(replace(large, q=large.q * LARGE), "packed, with large scores", large=True),
    ]


def _cached(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return cases of tokens that arrive in pieces, with a cache."""
    ask, pieces = drawn.ask, (3, 1, 2, 2)
    causal: dict[str, Any] = {"causal": True, "E": 10}
    left = padding_mask(8, (0, 8), (2, 8))
    large = ask("cache-large", T=8, **causal)
    return [
        ConformanceCase(
            ask("cache-window", T=8, H=6, G=2, window=4, **causal),
            "a cache, grouped heads, a window",
            pieces=pieces,
        ),
        ConformanceCase(
            ask("cache-sinks", T=8, softcap=1.5, sinks=drawn.numbers("cache-sinks", 4), **causal),
            "a cache, sink logits, a soft cap",
            scale=0.5,
            pieces=pieces,
        ),
        ConformanceCase(
            ask("cache-padding", T=8, padding=left, **causal),
            "a cache, padding before the tokens",
            pieces=pieces,
        ),
        ConformanceCase(
            ask("cache-blocks", B=1, H=1, T=70, D=70, causal=True, E=70),
            "a cache of 70 tokens",
            pieces=(40, 1, 29),
        ),
        ConformanceCase(
            replace(large, q=large.q * LARGE), "a cache, with large scores", pieces=pieces, large=True
        ),
    ]


def _half(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return cases in half precision."""
    ask, numbers = drawn.ask, drawn.numbers
    causal: dict[str, Any] = {"causal": True}
    large = ask("bfloat16-large", **causal)
    return [
        ConformanceCase(
            ask("float16-window", T=5, S=12, H=6, G=2, window=4, softcap=1.5, **causal),
            "a window, a soft cap, grouped heads, in float16",
            "float16",
            scale=0.5,
        ),
        ConformanceCase(
            ask(
                "float16-mask",
                T=9,
                S=5,
                mask=drawn.visible("float16-mask", 9, 5),
                bias=numbers("float16-mask", 9, 5),
            ),
            "more queries than keys, a mask, added numbers, in float16",
            "float16",
        ),
        ConformanceCase(
            ask("float16-cache", T=8, E=10, **causal), "a cache, in float16", "float16", pieces=(3, 1, 2, 2)
        ),
        ConformanceCase(
            ask(
                "bfloat16-sinks",
                sinks=numbers("bfloat16-sinks", 4),
                padding=padding_mask(TOKENS, (0, 7), (3, 7)),
                **causal,
            ),
            "sink logits, padding before the tokens, in bfloat16",
            "bfloat16",
        ),
        ConformanceCase(
            drawn.packed("bfloat16-packed", (5, 3, 6), (7, 3, 11), H=4, G=2, window=4, ahead=1),
            "packed, a window to both sides, grouped heads, in bfloat16",
            "bfloat16",
        ),
        ConformanceCase(
            ask("bfloat16-blocks", B=1, H=2, G=1, T=20, S=150, D=130, **causal),
            "150 keys, 130 wide, in bfloat16",
            "bfloat16",
        ),
        ConformanceCase(
            replace(large, q=large.q * LARGE), "large scores, in bfloat16", "bfloat16", large=True
        ),
    ]
