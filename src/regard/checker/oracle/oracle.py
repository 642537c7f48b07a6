"""The correct answer to a question: `regard.attention.steps` in float64, with a module's own weights.

This file knows questions and wirings; it does not know the code under test.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import tensor_mask
from regard.attention.steps import trace
from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question
from regard.checker.oracle.ragged_batch import answer_items
from regard.checker.oracle.variant import CaseSizes, past
from regard.checker.oracle.wiring import Wiring


class Oracle(Protocol):
    """Says which answer is right: an interpretation of the code as attention, or the caller's reference."""

    def answer(self, question: Question) -> Answer | None:
        """Return the right answer to a question; None if there is none."""

    def error(self, question: Question, answer: Answer) -> float:
        """Return how far an answer is from the right one; inf if there is none."""

    @property
    def yardstick(self) -> str:
        """Whose error the code's is compared with at each precision, in words."""

    def measure(self, question: Question, dtype: torch.dtype) -> tuple[Answer, float] | str:
        """Return the right answer for inputs and weights rounded to `dtype`, and the yardstick's error.

        Text instead says why there is none.
        """


def expected_answer(question: Question, wiring: Wiring, *, dtype: torch.dtype = torch.float64) -> Answer:
    """Return the correct answer to a question, computed in `dtype`.

    Rows without a visible key are marked free: the check of empty rows judges them.
    """
    question = question.to(dtype)
    if question.lengths is not None:
        return answer_items(question, lambda item: expected_answer(item, wiring, dtype=dtype))
    q, k, v = wiring.project(question)
    q, k, v = wiring.position(q, k, v)
    mask = _build_mask(question, q, k)
    if wiring.bias is not None:
        mask = mask & tensor_mask(wiring.bias(q.shape[1], q.shape[2], k.shape[2]).to(q.dtype))
    sinks = wiring.sinks if question.sinks is None else question.sinks.to(dtype)
    sinks = None if sinks is None else sinks.expand(q.shape[1])
    steps = trace(q, k, v, mask, scale=wiring.scale, softcap=question.softcap, sinks=sinks)
    empty = (steps.masked == -torch.inf).all(-1, keepdim=True)
    output, free = wiring.finish(steps.output, empty)
    return Answer(output, steps.weights, torch.logsumexp(steps.masked, -1), free)


def _build_mask(question: Question, q: Tensor, k: Tensor) -> Mask:
    """Combine everything in a question that hides keys or adds to the scores."""
    B, H, T, D = q.shape
    S = k.shape[2]
    allowed = torch.ones(1, 1, T, S, dtype=torch.bool)
    rows, cols = torch.arange(T)[:, None], torch.arange(S)
    if question.causal:
        allowed = allowed & past(rows, cols, CaseSizes(B, H, k.shape[1], T, S, D, H * D))
    if question.window is not None:
        allowed = allowed & (cols > rows + S - T - question.window)
    if question.ahead is not None:
        allowed = allowed & (cols <= rows + S - T + question.ahead)
    if question.mask is not None:
        allowed = allowed & question.mask
    if question.padding is not None:
        allowed = allowed & question.padding[:, None, None, :]
    mask = full if bool(allowed.all()) else tensor_mask(allowed)
    mask = mask if question.rule is None else mask & question.rule
    return mask if question.bias is None else mask & tensor_mask(question.bias.to(q.dtype))


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
        if not bool(keep.any()):
            return 0.0
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
    finite_a, finite_b = a.isfinite(), b.isfinite()
    if bool((finite_a != finite_b).any()):
        return float("inf")
    if not bool(finite_a.any()):
        return 0.0
    a, b = a[finite_a], b[finite_b]
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
