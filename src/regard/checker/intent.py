"""What the code is meant to compute: one interpretation of it, under which its output is right or wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from regard.attention.masks.base import Mask
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Answer
from regard.checker.oracle.wiring import Wiring

TOLERANCE = 2e-5  # relative; far above rounding, far below any mistake


@dataclass(frozen=True)
class Intent:
    """One interpretation of the code: its wiring, whether it is causal by itself, and what else it does."""

    wiring: Wiring
    causal: bool
    window: int | None = None
    softcap: float | None = None
    rule: Mask | None = None
    features: tuple[str, ...] = ()  # what it does beside plain attention: "in a window of 4"

    def apply(self, question: Question) -> Question:
        """Return the question with this interpretation's causality, window, cap and rule.

        What the question itself says decides.
        """
        return replace(
            question,
            causal=self.causal if question.flag is None else question.flag,
            window=self.window if question.window is None else question.window,
            softcap=self.softcap if question.softcap is None else question.softcap,
            rule=self.rule if question.rule is None else question.rule,
        )


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
