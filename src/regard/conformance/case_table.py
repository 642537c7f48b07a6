"""The cases, and the pairs of features that they test.

A kernel may be right with a window and right with packed sequences, and wrong with both. So every two
features are in one case at least; `UNTESTED` names the pairs that are not, each with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from regard.conformance.case_draw import LARGE, TOKENS, CaseDraw, padding_mask
from regard.conformance.cases import ConformanceCase
from regard.conformance.combined_cases import combine_features

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
    drawn = CaseDraw(seed)
    return [*_single_features(drawn), *combine_features(drawn)]


def _single_features(drawn: CaseDraw) -> list[ConformanceCase]:
    """Return the cases of version 1 of the format, most of which have one feature."""
    ask, visible, numbers = drawn.ask, drawn.visible, drawn.numbers
    tokens = padding_mask(TOKENS, (0, 6), (0, 4))
    causal: dict[str, Any] = {"causal": True}
    large = ask("large-scores", **causal)
    empty = visible("empty-rows", TOKENS, TOKENS)
    empty[[0, 3]] = False
    cases = [
        ConformanceCase(ask("plain"), "no option"),
        ConformanceCase(ask("square", D=10, E=10), "values as wide as keys"),
        ConformanceCase(ask("causal", **causal), "causal, as many queries as keys"),
        ConformanceCase(ask("decode", T=3, S=8, **causal), "causal, the queries are the last of the keys"),
        ConformanceCase(ask("one-query", T=1, S=8, **causal), "causal, one query, as in generation"),
        ConformanceCase(ask("cross", T=5, S=9), "fewer queries than keys, no mask"),
        ConformanceCase(ask("mask", mask=visible("mask", 7, 7)), "a boolean mask (T, S)"),
        ConformanceCase(ask("item-mask", mask=visible("item-mask", 2, 1, 7, 7)), "a mask for each item"),
        ConformanceCase(ask("padding", padding=tokens), "keys that are padding"),
        ConformanceCase(ask("bias", bias=numbers("bias", 7, 7)), "numbers that are added to the scores"),
        ConformanceCase(ask("causal-padding", padding=tokens, **causal), "causal, and padding"),
        ConformanceCase(
            ask("causal-mask", mask=visible("causal-mask", 7, 7), **causal), "causal, and a mask"
        ),
        ConformanceCase(ask("window", T=12, window=4, **causal), "causal, the 4 latest keys"),
        ConformanceCase(ask("window-sides", T=12, window=4, ahead=2), "a window to both sides"),
        ConformanceCase(ask("softcap", softcap=1.5, **causal), "causal, with a soft cap"),
        ConformanceCase(ask("sinks", sinks=numbers("sinks", 4), **causal), "a sink logit for each head"),
        ConformanceCase(ask("grouped", G=2, **causal), "two key/value heads for four query heads"),
        ConformanceCase(ask("one-group", G=1, **causal), "one key/value head for four query heads"),
        ConformanceCase(ask("grouped-sinks", G=2, sinks=numbers("grouped-sinks", 4)), "both"),
        ConformanceCase(ask("several-blocks", B=1, H=1, T=150, **causal), "150 tokens: several blocks"),
        ConformanceCase(
            drawn.packed("packed", (5, 3, 6), (5, 3, 6), H=2, **causal),
            "three sequences one after the other, causal",
        ),
        ConformanceCase(
            drawn.packed("packed-cross", (5, 3, 6), (7, 3, 11), H=2),
            "three sequences with other numbers of keys than queries",
        ),
        ConformanceCase(
            ask("cache", T=8, E=10, **causal), "tokens in pieces, with a cache", pieces=(3, 1, 2, 2)
        ),
        ConformanceCase(ask("scale"), "a scale that is not 1/√D", scale=0.5),
        ConformanceCase(ask("empty-rows", mask=empty), "two queries that see no key: their output is 0"),
        ConformanceCase(
            replace(large, q=large.q * LARGE),
            "scores whose exponentials overflow float32, causal",
            large=True,
        ),
    ]
    for dtype in ("float16", "bfloat16"):
        cases.append(ConformanceCase(ask(f"{dtype}-plain"), f"no option, in {dtype}", dtype))
        cases.append(ConformanceCase(ask(f"{dtype}-causal", **causal), f"causal, in {dtype}", dtype))
    return cases


def untested_pairs(cases: Iterable[ConformanceCase]) -> set[frozenset[str]]:
    """Return the pairs of features that no case has together."""
    features = [set(case.features()) for case in cases]
    every = sorted(set().union(*features))
    return {
        frozenset(pair)
        for pair in itertools.combinations(every, 2)
        if not any(set(pair) <= f for f in features)
    }
