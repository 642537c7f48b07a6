"""A question that is asked of a mistake: how far its answer is off, and why it may not show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.oracle import relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT, Answer, AttentionVariant
from regard.checker.oracle.wiring import Wiring

LARGE = 88.0  # a score whose exponential overflows float32
LACKING = ("there is no ", "no key is hidden")  # how a reason begins if inputs lack what a mistake acts on
# Fields of a variant that need something of a module, and whether a wiring has it.
NEEDS: dict[str, Callable[[Wiring], bool]] = {
    **dict.fromkeys(("split", "merge", "out", "layers"), lambda wiring: wiring.splits),
    **dict.fromkeys(("rotated", "rotation"), lambda wiring: wiring.rotate is not None),
    "normalised": lambda wiring: wiring.query_norm is not None or wiring.key_norm is not None,
    "bias": lambda wiring: wiring.bias is not None,
}


class Asked:
    """A question with its right answer, its tolerance and its kind."""

    def __init__(self, question: Question, wiring: Wiring, tolerance: float) -> None:
        self.question, self.wiring, self.tolerance = question, wiring, tolerance
        with torch.no_grad():
            self.right = CORRECT.answer(question, wiring)
            self.q, self.k, self.v = wiring.project(question)
        self.kind = self._kind()

    def _kind(self) -> str:
        """Return the one kind of input that a question is an example of."""
        question, (T, S) = self.question, (self.q.shape[2], self.k.shape[2])
        if float(self._scores().abs().max()) > LARGE:
            return "large scores"
        sinks = self.wiring.sinks if question.sinks is None else question.sinks
        options: dict[str, Any] = {"sink logits": sinks, "float mask": question.bias}
        options |= {"window": question.window, "softcap": question.softcap, "mask": question.mask}
        options |= {"padding": question.padding, "lengths": question.lengths}
        masks = [x is not None for x in (question.mask, question.padding, question.bias)]
        # A window and a soft cap alone are asked with causality.
        others = [question.causal and any(masks), question.window is not None, question.softcap is not None]
        if sum([*masks, *others]) > 1:
            return "two options"
        if question.ahead is not None:
            return "window"
        for kind, value in options.items():
            if value is not None:
                return kind
        if self.k.shape[1] < self.q.shape[1]:
            return "grouped heads"
        if T != S and question.causal:
            return "causal, T < S"
        if T != S or self.v.shape[3] != self.k.shape[3]:
            return "other shapes"
        return "causal" if question.causal else "plain"

    def _scores(self) -> Tensor:
        k = self.k.repeat_interleave(self.q.shape[1] // self.k.shape[1], 1)
        scale = self.q.shape[-1] ** -0.5 if self.wiring.scale is None else self.wiring.scale
        return self.q @ k.mT * scale

    def distance(self, variant: AttentionVariant) -> float:
        """Return how far a variant's answer is from the right one; inf if it cannot be computed.

        A row in which the variant sees no key counts as 0: programs differ in what they give there.
        """
        try:
            with torch.no_grad():
                answer = variant.answer(self.question, self.wiring)
            if answer.free is not None:
                answer = Answer(answer.output.masked_fill(answer.free, 0.0))
            return relative_error(answer, self.right) / self.tolerance
        except (RuntimeError, ValueError, IndexError):
            return math.inf

    def reasons(self, change: dict[str, Any]) -> set[str]:
        """Return the reasons why a change to the variant can make no difference here; none if it can."""
        return {_REASONS[name](self, value) for name, value in change.items() if name in _REASONS} - {""}

    def lacks(self, change: dict[str, Any]) -> bool:
        """Return whether the question has nothing that a change to the variant could act on."""
        return any(reason.startswith(LACKING) for reason in self.reasons(change))

    def applies(self, change: dict[str, Any]) -> bool:
        """Return whether a change concerns this question: some concern only modules of a kind."""
        return all(NEEDS[name](self.wiring) for name in change if name in NEEDS)

    @property
    def hides(self) -> bool:
        """Whether any key is hidden from any query."""
        weights = self.right.weights
        return weights is not None and bool((weights == 0).any())


def _why_causal(asked: Asked, value: Any) -> str:
    T, S = asked.q.shape[2], asked.k.shape[2]
    if not asked.question.causal:
        return "there is no causal mask"
    return "there is a single query" if T == 1 else "there are as many queries as keys" if T == S else ""


def _why_always_causal(asked: Asked, value: Any) -> str:
    return (
        "there is no argument that switches the causal mask off" if asked.question.flag is not False else ""
    )


def _why_window(asked: Asked, value: Any) -> str:
    window, S = asked.question.window, asked.k.shape[2]
    if window is None:
        return "there is no window"
    return f"the window of {window} is longer than the text of {S} keys" if window >= S else ""


def _why_mask(asked: Asked, value: Any) -> str:
    mask = asked.question.mask
    if mask is None:
        return "there is no mask"
    if bool(mask.all()):
        return "the mask hides nothing"
    return "the mask is symmetric" if value == "transposed" and torch.equal(mask, mask.mT) else ""


def _why_joined(asked: Asked, value: Any) -> str:
    question = asked.question
    masks = sum(x is not None for x in (question.mask, question.padding, question.window, question.rule))
    return "there is no second mask" if masks + question.causal < 2 else ""


def _why_padding(asked: Asked, value: Any) -> str:
    padding = asked.question.padding
    if padding is None:
        return "there is no padding"
    return "all lengths are equal, so nothing is padded" if bool(padding.all()) else ""


def _why_softcap(asked: Asked, value: Any) -> str:
    cap = asked.question.softcap
    if cap is None:
        return "there is no soft cap"
    if value == "after":
        return f"exp(−{cap:g}) is too little to show" if asked.hides else "no key is hidden"
    return "the scores are far below the soft cap"


def _why_masking(asked: Asked, value: Any) -> str:
    if value == "scaled":
        return "there is no float mask" if asked.question.bias is None else ""
    return "" if asked.hides else "no key is hidden"


def _why_fill(asked: Asked, value: Any) -> str:
    return f"no visible score comes near {value:g}" if asked.hides else "no key is hidden"


def _why_groups(asked: Asked, value: Any) -> str:
    H, G = asked.q.shape[1], asked.k.shape[1]
    if H == G:
        return "there are as many key/value heads as query heads"
    return "there is a single key/value head" if G == 1 else ""


def _why_batch(asked: Asked, value: Any) -> str:
    return "the batch has one item" if asked.q.shape[0] == 1 else ""


def _why_scale(asked: Asked, value: Any) -> str:
    D, S = asked.q.shape[3], asked.k.shape[2]
    if S == 1:
        return "there is a single key, whose weight is always 1"
    if asked.wiring.scale is not None:
        return f"the scale is {asked.wiring.scale:g}"
    if S == D:
        return f"there are {S} keys, as many as a head is wide"
    return "there is a single head" if asked.q.shape[1] == 1 else ""


def _why_ahead(asked: Asked, value: Any) -> str:
    ahead = asked.question.ahead
    if ahead is None:
        return "there is no window to the right"
    return "the window to the right holds every later key" if ahead >= asked.k.shape[2] - 1 else ""


def _why_sinks(asked: Asked, value: Any) -> str:
    sinks = asked.wiring.sinks if asked.question.sinks is None else asked.question.sinks
    if sinks is None:
        return "there is no sink logit"
    if bool((sinks == -torch.inf).all()):
        return "the sink logits are −∞, which takes no share"
    return "all heads have the same sink logit" if bool((sinks == sinks[0]).all()) else ""


def _why_chunk(asked: Asked, value: Any) -> str:
    S = asked.k.shape[2]
    if asked.question.splits is not None:
        return "" if asked.question.splits > 1 else "the keys are worked on in one part"
    if value is None:
        return "there is no number of parts, in which the keys are worked on"
    return f"a part of {value} keys holds the whole text of {S}" if value >= S else ""


def _why_normalise(asked: Asked, value: Any) -> str:
    if value == "exp":
        return f"no score is above {LARGE:g}"
    if value != "renormalise":
        return ""
    return "no hidden score is far above the visible ones" if asked.hides else "no key is hidden"


def _why_roles(asked: Asked, value: Any) -> str:
    return "queries, keys and values are the same tensor" if asked.question.q is asked.question.v else ""


def _why_detach(asked: Asked, value: Any) -> str:
    return "the output is right: only gradients show it"


_REASONS: dict[str, Callable[[Asked, Any], str]] = {
    "causal": _why_causal,
    "always_causal": _why_always_causal,
    "window": _why_window,
    "mask_argument": _why_mask,
    "padding": _why_padding,
    "joined": _why_joined,
    "softcap": _why_softcap,
    "masking": _why_masking,
    "fill": _why_fill,
    "inverted": _why_masking,
    "ahead": _why_ahead,
    "sinks": _why_sinks,
    "chunk": _why_chunk,
    "block": _why_chunk,
    "groups": _why_groups,
    "batch": _why_batch,
    "scale": _why_scale,
    "normalise": _why_normalise,
    "roles": _why_roles,
    "detach": _why_detach,
}
