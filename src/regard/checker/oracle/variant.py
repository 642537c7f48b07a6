"""Attention as somebody may have written it.

An `AttentionVariant` with every field at its default is correct: it gives the same numbers as
`regard.attention.steps`. Each field holds one decision that authors get wrong; a mistake of the catalogue is
a variant with a field or two changed. `answer` runs a variant on a question, in any dtype and with gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring


class TestSizes(NamedTuple):
    """The sizes of one attention, in the house's letters; C is the width of the model."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    C: int


class Answer(NamedTuple):
    """What attention gives. `free` marks rows (…, T, 1) about which a recipe has nothing to say."""

    output: Tensor
    weights: Tensor | None = None  # (B, H, T, S)
    lse: Tensor | None = None  # (B, H, T)
    free: Tensor | None = None


Projected = tuple[Tensor, Tensor, Tensor]
Rule = Callable[[Tensor, Tensor, TestSizes], Tensor]
Scale = Callable[[TestSizes], float]


def past(q: Tensor, k: Tensor, n: TestSizes) -> Tensor:
    """The right causal rule: q counts from 0, the queries stand at the end of the keys."""
    return k <= q + n.S - n.T


def root(n: TestSizes) -> float:
    """The right scale."""
    return float(n.D**-0.5)


@dataclass(frozen=True)
class AttentionVariant:
    """The decisions of one implementation of attention."""

    roles: tuple[int, int, int] = (0, 1, 2)  # which of (query, key, value) plays which part
    split: str = "transpose"  # or "view": heads split without a transpose
    merge: str = "transpose"  # or "view"
    groups: str = "interleave"  # or "tile"
    scale: Scale = root
    causal: Rule = past
    given: str = "as given"  # the mask argument: or "inverted", "ignored", "transposed"
    padding: str = "as given"  # or "ignored"
    window: int | None = 0  # keys too many; None: the window is dropped
    softcap: str = "before"  # or "after" the mask, or "dropped"
    masking: str = "fill"  # how the mask meets the scores: see `_mask_scores`
    fill: float = -torch.inf
    axis: int = -1  # of the softmax, among (B, H, T, S)
    normalise: str = "softmax"  # or "exp": no maximum subtracted; or "renormalise", with masking "after"
    always: bool = False  # the mask's code runs even where nobody asked for a mask
    inverted: bool = False  # everything that is hidden is shown, and the other way round
    batch: str = "apart"  # or "together": one long sequence
    out: str = "project"  # or "skip"
    detach: str = ""  # "weights": no gradient through them

    def answer(self, question: Question, wiring: Wiring, projected: Projected | None = None) -> Answer:
        """What this recipe gives for a question, in the question's dtype. `projected` saves work already
        done."""
        projected = projected or wiring.project(question, view=self.split == "view")
        q, k, v = (projected[role] for role in self.roles)  # (B, H, T, D), (B, G, S, D), (B, G, S, E)
        q, k = wiring.position(q, k, question)
        B, H, T, D = q.shape
        n = TestSizes(B, H, k.shape[1], T, k.shape[2], D, wiring.width or H * D)
        if n.G < H:
            k, v = (self._regroup(x, H // n.G) for x in (k, v))
        if self.batch == "together":
            q, k, v = (x.transpose(0, 1).flatten(1, 2).unsqueeze(0) for x in (q, k, v))  # (1, H, B·T, D)
            n = n._replace(B=1, T=q.shape[2], S=k.shape[2])

        scale = wiring.scale if wiring.scale is not None and self.scale is root else self.scale(n)
        scaled = (q @ k.mT) * scale  # (B, H, T, S)
        allowed = self._allowed(question, n, q.device)
        if self.softcap == "before" and question.softcap is not None:
            scaled = question.softcap * torch.tanh(scaled / question.softcap)
        masked = scaled if question.bias is None else scaled + question.bias.to(scaled)
        if self.masking == "scaled" and question.bias is not None:
            masked = scaled + question.bias.to(scaled) * scale
        if allowed is not None:
            masked = self._mask_scores(masked, allowed, scale)
        if self.softcap == "after" and question.softcap is not None:
            masked = question.softcap * torch.tanh(masked / question.softcap)
        weights = self._normalised(masked, allowed, wiring.sinks)
        if self.detach == "weights":
            weights = weights.detach()
        mixed = weights @ v  # (B, H, T, E)

        free = None
        if allowed is not None and self.masking != "nan":
            free = (~allowed).all(-1, keepdim=True).expand(*mixed.shape[:-1], 1)
        shown: Tensor | None = weights
        if self.batch == "together":  # back to one sequence an item
            mixed, shown = mixed.view(H, B, T, -1).transpose(0, 1), None
            free = None if free is None else free.view(H, B, T, 1).transpose(0, 1)
        output, free = wiring.finish(mixed, free, view=self.merge == "view", skip=self.out == "skip")
        return Answer(output, shown, None, free)

    def _regroup(self, x: Tensor, times: int) -> Tensor:
        return x.repeat(1, times, 1, 1) if self.groups == "tile" else x.repeat_interleave(times, 1)

    def _allowed(self, question: Question, n: TestSizes, device: torch.device) -> Tensor | None:
        """Who may look at whom, as this recipe understands it; None where nobody asked for a mask."""
        asked = question.causal or question.window is not None
        asked = asked or self.always or question.rule is not None
        if not asked and question.mask is None and question.padding is None:
            return None
        q, k = torch.arange(n.T, device=device)[:, None], torch.arange(n.S, device=device)
        allowed = torch.ones(n.T, n.S, dtype=torch.bool, device=device)[None, None]
        if question.causal:
            allowed = allowed & self.causal(q, k, n)
        if question.window is not None and self.window is not None:
            allowed = allowed & (k > q + n.S - n.T - question.window - self.window)
        if question.rule is not None:
            tile = question.rule.tile(range(n.T), range(n.S), (n.B, n.H, n.T, n.S), device=device)
            allowed = allowed & tile
        if question.mask is not None and self.given != "ignored":
            mask = question.mask
            mask = ~mask if self.given == "inverted" else mask.mT if self.given == "transposed" else mask
            allowed = allowed & mask
        if question.padding is not None and self.padding != "ignored":
            real = question.padding if self.padding == "as given" else ~question.padding
            allowed = allowed & real[:, None, None, :]
        return ~allowed if self.inverted else allowed

    def _mask_scores(self, scores: Tensor, allowed: Tensor, scale: float) -> Tensor:
        how = self.masking
        if how in ("fill", "scaled"):
            return scores.masked_fill(~allowed, self.fill)
        if how == "add":
            return scores + allowed.to(scores)
        if how == "add hidden":
            return scores + (~allowed).to(scores)
        if how == "multiply":
            return scores * allowed.to(scores)
        if how == "nan":
            return scores + (~allowed).to(scores) * -torch.inf
        return scores  # "after": see `_normalised`

    def _normalised(self, masked: Tensor, allowed: Tensor | None, sinks: Tensor | None) -> Tensor:
        if sinks is not None:
            column = sinks.to(masked).view(-1, 1, 1).expand(*masked.shape[:-1], 1)
            return torch.softmax(torch.cat([masked, column], -1), self.axis)[..., :-1]
        if self.normalise == "exp":
            weights = masked.exp()
            weights = weights / weights.sum(self.axis, keepdim=True)
        else:
            weights = torch.softmax(masked, self.axis)
        if self.masking == "after" and allowed is not None:
            weights = weights * allowed.to(weights)
            if self.normalise == "renormalise":
                weights = weights / weights.sum(self.axis, keepdim=True)
        return weights


RIGHT = AttentionVariant()
