"""The right answer to a question: that of an interpretation of the code, or of the caller's reference.

An `Intent` is one interpretation, under which an output is right or wrong. It answers by the variant without
a mistake in float64, with a module's own weights; a test holds that equal to `regard.attention.steps`. This
file knows questions and wirings; it does not know the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.oracle.wiring import Rotation, Wiring


def expected_answer(question: Question, wiring: Wiring) -> Answer:
    """Return the correct answer to a question, in float64.

    Rows without a visible key are marked free: the check of empty rows judges them.
    """
    return CORRECT.answer(question.to(torch.float64), wiring)


def relative_error(got: Answer, expected: Answer) -> float:
    """Return the largest difference of two outputs, relative to the largest expected number.

    It is inf if one output is NaN or inf where the other is a number. Rows that are free in the expected
    answer do not count.
    """
    if got.output.shape != expected.output.shape:
        return float("inf")
    a, b = got.output.detach().double(), expected.output.detach().double()
    if expected.free is not None and bool(expected.free.any()):
        keep = ~expected.free.expand_as(a)
        a, b = a[keep], b[keep]
    return relative_difference(a, b)


def describe_difference(error: float) -> str:
    """Return a relative difference in words."""
    if error == float("inf"):
        return "NaN or inf instead of numbers"
    percent = 100 * error
    share = f"{error:.0e}" if percent < 0.1 else f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
    return f"differs by up to {share} of the largest number"


def describe_agreement(error: float) -> str:
    """Return in words how closely two outputs agree."""
    return "up to rounding" if error < 1e-9 else f"to {error:.0e}"


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest |a − b| relative to the largest |b|; inf unless finite at the same places."""
    if a.numel() and math.isfinite(largest := float((a - b).abs().max())):  # all numbers of both are finite
        # An output of zeros has no largest number to divide by.
        return largest / max(float(b.abs().max()), 1e-30)
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    return float((a[finite] - b[finite]).abs().max() / b[finite].abs().max().clamp_min(1e-30))


TOLERANCE = 2e-5  # relative; far above rounding, far below any mistake


@dataclass(frozen=True)
class WindowConvention:
    """What a number n that the code calls its window may mean, other than n keys with the query's own."""

    words: str  # completes "window: …"
    change: Callable[[int, Question], Question]
    one_more: bool = False  # whether it differs from another convention by one key on a side


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

    def seeing(self, question: Question, visible: Tensor) -> tuple[Intent, Question]:
        """Return this interpretation and a question with a mask (T, S) in place of all that hides keys."""
        masked = replace(question, mask=visible, window=None, rule=None, flag=None)
        return replace(self, causal=False, window=None, rule=None), masked

    def answer(self, question: Question) -> Answer:
        """Return the correct answer to a question under this interpretation, in float64."""
        return expected_answer(self.apply(question), self.wiring)

    def error(self, question: Question, answer: Answer) -> float:
        """Return how far an answer is from the correct one; inf if this interpretation does not fit."""
        try:
            with torch.no_grad():
                return relative_error(answer, self.answer(question))
        except (RuntimeError, ValueError, IndexError, TypeError):  # widths that do not fit
            return float("inf")

    yardstick = "PyTorch's own"  # whose error the code's is compared with at each precision

    def measure(self, question: Question, dtype: torch.dtype) -> tuple[Answer, float]:
        """Return the correct answer for inputs and weights rounded to `dtype`, and PyTorch's own error."""
        expected = self.rounded_answer(question, dtype)
        return expected, pytorch_error(question, self, expected, dtype)

    def rounded_answer(self, question: Question, dtype: torch.dtype) -> Answer:
        """Return the correct answer for inputs and weights rounded to `dtype`."""
        wiring = self.wiring
        layers = {
            role: layer._replace(
                weight=layer.weight.to(dtype).double(),
                bias=None if layer.bias is None else layer.bias.to(dtype).double(),
            )
            for role in ("query", "key", "value", "out")
            if (layer := getattr(wiring, role)) is not None
        }
        with torch.no_grad():
            return replace(self, wiring=replace(wiring, **layers)).answer(question.to(dtype))


def pytorch_answer(question: Question, intent: Intent, dtype: torch.dtype) -> Answer:
    """Return the answer of PyTorch's plain operations at this dtype."""
    interpreted = replace(intent.apply(question).to(dtype), layout="")
    if isinstance(rotation := intent.wiring.rotate, Rotation):  # whose angles are usually float32
        rotation = replace(rotation, precision=torch.float32)
        intent = replace(intent, wiring=replace(intent.wiring, rotate=rotation))
    with torch.no_grad():
        return CORRECT.answer(interpreted, intent.wiring)


def pytorch_error(question: Question, intent: Intent, expected: Answer, dtype: torch.dtype) -> float:
    """Return the error of PyTorch's plain operations at this dtype."""
    plain = pytorch_answer(question, intent, dtype)
    # PyTorch may be exact by luck, and no code can be held to that.
    return max(relative_error(plain, expected), torch.finfo(dtype).eps / 2)


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
