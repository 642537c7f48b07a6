"""Mistakes with a cache, where there are more keys than queries."""

from __future__ import annotations

from torch import Tensor

from regard.checker.mistakes.mistake import Mistake
from regard.checker.oracle.variant import CaseSizes

_ROWS = "        allowed = self.mask[S - T : S, :S]\n"


def _top_left(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return k <= q


def _all_rows(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    return (k < n.S) & (q >= 0) if n.S > n.T else k <= q


CACHE_MISTAKES = (
    Mistake(
        "top-left-causal",
        "with the causal mask aligned to the first keys, as if the queries came first",
        "With a cache, a new token sees only the first key.",
        "align queries with the end: torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)",
        "is_causal=True of F.scaled_dot_product_attention, which is defined this way, used with a cache",
        ({"causal": _top_left},),
        plants={
            "layer": ((_ROWS, "        allowed = self.mask[:T, :S]\n"),),
            "function": (
                (
                    "        allowed = keys <= at\n",
                    "        allowed = torch.ones(T, S, dtype=torch.bool).tril()\n",
                ),
            ),
        },
    ),
    Mistake(
        "square-mask-sliced-by-columns",
        "with a square mask whose columns were sliced, but not its rows",
        "It is right for one token at a time; several new tokens at once see their future.",
        "slice rows and columns: mask[S - T : S, :S]",
        "`mask[-T:, :S]` of a mask made for the maximum length",
        ({"causal": _all_rows},),
        plants={
            "layer": ((_ROWS, "        allowed = self.mask[-T:, :S] if S > T else self.mask[:T, :T]\n"),)
        },
    ),
    Mistake(
        "cache-ignored",
        "in which new tokens attend only to each other, not to the cache",
        "Generation ignores the prompt.",
        "k = torch.cat([cached_k, k], dim=2), and v the same, before the scores",
        "a cache that is filled and returned, but never read",
        plants={
            "layer": (
                (
                    "            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)\n",
                    "            k, v = k, v\n",
                ),
            )
        },
    ),
)
