"""What the code is meant to compute: one interpretation of it, under which its output is right or wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import chunks
from regard.attention.masks.named_masks import rule as rule_mask
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Answer
from regard.checker.oracle.wiring import Wiring

TOLERANCE = 2e-5  # relative; far above rounding, far below any mistake


@dataclass(frozen=True)
class WindowConvention:
    """What a number n that the code calls its window may mean, other than n keys with the query's own."""

    words: str  # completes "window: …"
    change: Callable[[int, Question], Question]
    one_more: bool = False  # whether it differs from another convention by one key on a side


def _one_more(n: int, question: Question) -> Question:
    return replace(question, window=n + 1)


def _to_both_sides(reach: Callable[[int], int], n: int, question: Question) -> Question:
    if question.causal:
        raise ValueError("a causal window has one side")
    return replace(question, window=reach(n) + 1, ahead=reach(n))


def _in_buckets(mask: Callable[[int], Mask], n: int, question: Question) -> Question:
    return replace(question, window=None, rule=mask(n))


def looking_back(n: int) -> Mask:
    """Return the mask of buckets of n keys, in which a query sees its own bucket and the one before."""
    return rule_mask(lambda b, h, q, k: (q // n == k // n) | (q // n == k // n + 1))


WINDOW_CONVENTIONS = (
    WindowConvention("itself and n keys before it", _one_more, one_more=True),
    WindowConvention("n keys on either side", partial(_to_both_sides, lambda n: n), one_more=True),
    WindowConvention("fewer than n keys on either side", partial(_to_both_sides, lambda n: n - 1)),
    # Longformer's attention_window is the whole width.
    WindowConvention("n // 2 keys on either side", partial(_to_both_sides, lambda n: n // 2)),
    # lucidrains/local-attention.
    WindowConvention("buckets of n keys, its own and the one before", partial(_in_buckets, looking_back)),
    WindowConvention("buckets of n keys", partial(_in_buckets, chunks)),
)
# "The last `window` keys, itself included": then one key more is a mistake.
_OWN_KEY = r"(itself|self|its own|the (query|current)('s)?( own)?)"
_COUNTS_ITSELF = re.compile(
    rf"\b{_OWN_KEY}( (key|token|position))?,? (is )?(included|counted)|\b(includ|count)ing {_OWN_KEY}\b"
    r"|\b\w+ ?[-−] ?1 ((previous|earlier|past|preceding) )?(keys|tokens|positions)\b",
    re.I,
)


def window_conventions(source: str) -> list[WindowConvention]:
    """Return what else the window of code with this source text may mean."""
    stated = _COUNTS_ITSELF.search(re.sub(r"[\s#]+", " ", source)) is not None
    return [c for c in WINDOW_CONVENTIONS if not (stated and c.one_more)]


@dataclass(frozen=True)
class Intent:
    """One interpretation of the code: its wiring, whether it is causal by itself, and what else it does."""

    wiring: Wiring
    causal: bool
    window: int | None = None
    softcap: float | None = None
    rule: Mask | None = None
    features: tuple[str, ...] = ()  # what it does beside plain attention: "in a window of 4"
    convention: WindowConvention | None = None  # what the window of a question means; None for the usual

    def apply(self, question: Question) -> Question:
        """Return the question with this interpretation's causality, window, cap and rule.

        What the question itself says decides.
        """
        asked = replace(
            question,
            causal=self.causal if question.flag is None else question.flag,
            window=self.window if question.window is None else question.window,
            softcap=self.softcap if question.softcap is None else question.softcap,
            rule=self.rule if question.rule is None else question.rule,
        )
        if self.convention is None or question.window is None:
            return asked
        # A rule of this interpretation is the window that the code has by default.
        return self.convention.change(question.window, replace(asked, rule=question.rule))


@dataclass(frozen=True)
class Observation:
    """A question and the subject's answer."""

    question: Question
    answer: Answer


def fitting_intents(intents: list[Intent], observations: list[Observation]) -> list[Intent]:
    """Return the interpretations whose output has the right shape."""
    fitting = []
    for intent in intents if observations else []:
        try:
            shape = CORRECT.answer(intent.apply(observations[0].question), intent.wiring).output.shape
        except (RuntimeError, ValueError, IndexError):
            continue
        if shape == observations[0].answer.output.shape:
            fitting.append(intent)
    return fitting
