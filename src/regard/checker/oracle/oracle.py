"""The right answer: attention in the open (`regard.attention.steps`) with somebody's own weights."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import tensor_mask
from regard.attention.steps import trace
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer, TestSizes, past
from regard.checker.oracle.wiring import Wiring


def truth(question: Question, wiring: Wiring, *, dtype: torch.dtype = torch.float64) -> Answer:
    """What the answer should be. Rows that may look at nothing are marked free: see the check of empty rows.
    What the answer should be. Rows that may look at nothing are marked free: see the check of empty rows."""
    question = question.to(dtype)
    q, k, v = wiring.project(question)
    q, k = wiring.position(q, k, question)
    mask = _mask(question, q, k)
    steps = trace(q, k, v, mask, scale=wiring.scale, softcap=question.softcap, sinks=wiring.sinks)
    empty = (steps.masked == -torch.inf).all(-1, keepdim=True)
    output, free = wiring.finish(steps.output, empty)
    return Answer(output, steps.weights, torch.logsumexp(steps.masked, -1), free)


def _mask(question: Question, q: Tensor, k: Tensor) -> Mask:
    B, H, T, D = q.shape
    S = k.shape[2]
    allowed = torch.ones(1, 1, T, S, dtype=torch.bool)
    rows, cols = torch.arange(T)[:, None], torch.arange(S)
    if question.causal:
        allowed = allowed & past(rows, cols, TestSizes(B, H, k.shape[1], T, S, D, H * D))
    if question.window is not None:
        allowed = allowed & (cols > rows + S - T - question.window)
    if question.mask is not None:
        allowed = allowed & question.mask
    if question.padding is not None:
        allowed = allowed & question.padding[:, None, None, :]
    mask = full if bool(allowed.all()) else tensor_mask(allowed)
    mask = mask if question.rule is None else mask & question.rule
    return mask if question.bias is None else mask & tensor_mask(question.bias.to(q.dtype))


def apart(got: Answer, expected: Answer) -> float:
    """The largest difference relative to the largest expected number; inf where one is NaN and the other is
    not.

    Rows that the expected answer leaves free do not count.
    """
    if got.output.shape != expected.output.shape:
        return float("inf")
    a, b = got.output.detach().double(), expected.output.detach().double()
    if expected.free is not None:
        keep = ~expected.free.expand_as(a)
        if not bool(keep.any()):
            return 0.0
        a, b = a[keep], b[keep]
    return distance(a, b)


def distance(a: Tensor, b: Tensor) -> float:
    """The largest |a − b| relative to the largest |b|, where NaN equals only NaN."""
    strange_a, strange_b = ~a.isfinite(), ~b.isfinite()
    if bool((strange_a != strange_b).any()):
        return float("inf")
    if bool(strange_a.all()):
        return 0.0
    a, b = a[~strange_a], b[~strange_b]
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
