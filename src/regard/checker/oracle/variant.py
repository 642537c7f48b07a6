"""Variants of attention: the correct one, and those that contain a mistake.

An `AttentionVariant` with every field at its default is correct: it gives the same numbers as
`regard.attention.steps`. Each field is one decision that authors get wrong; a mistake of the catalogue is a
variant with a field or two changed. `answer` runs a variant on a question, in any dtype and with gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.checker.oracle.question import Answer, Question, Reach, answer_items
from regard.checker.oracle.wiring import Rotation, Split, Wiring


class CaseSizes(NamedTuple):
    """The sizes of one question: batch, heads, key/value heads, queries, keys, head width, model width."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int
    C: int


# The layouts in which the items of a batch have lengths of their own.
RAGGED_LAYOUTS = ("packed", "paged", "paged or not", "cache")
Projected = tuple[Tensor, Tensor, Tensor]
Rule = Callable[[Tensor, Tensor, CaseSizes], Tensor]
Scale = Callable[[CaseSizes], float]
SinkLogits = Literal[
    "joined",  # every head has its own
    "dropped",
    "twice",
    "of the group",
    "of the group, tiled",
    "of the next head",
    "of the previous head",
    "of the first head",
]
Masking = Literal[
    "fill",  # hidden scores become `fill`
    "scaled",  # as "fill", but a bias of the question is scaled with the scores
    "add fill",  # `fill` is added to them
    "add",  # 1 is added to the visible scores
    "add hidden",  # and here to the hidden ones
    "multiply",  # hidden scores become 0
    "nan",  # 0 · −∞ is added to the visible scores
    "after",  # the weights are masked, not the scores
]
Normalisation = Literal[
    "softmax",
    "exp",  # subtracts no maximum
    "none",
    "log",  # the logarithm of a softmax
    "twice",  # a softmax of the softmax
    "scaled",  # the weights are multiplied by the scale
    "not divided",  # leaves out the sum
    "renormalise",  # goes with masking "after"
    "mean",  # of the softmax of every block
    "stale",  # in blocks; neither the output nor the sum is rescaled for a new maximum
    "stale output",
    "stale sum",
]


def past(q: Tensor, k: Tensor, n: CaseSizes) -> Tensor:
    """Return the correct causal mask: q counts from 0, and the queries align with the end of the keys."""
    return k <= q + n.S - n.T


def root(n: CaseSizes) -> float:
    """Return the correct scale."""
    return float(n.D**-0.5)


def _known(rotate: Callable[[Tensor, int], Tensor]) -> Rotation:
    """Return a rotation whose frequencies are known; ValueError if they are not."""
    if not isinstance(rotate, Rotation):
        raise ValueError("the frequencies of this rotation are not known")
    return rotate


@dataclass(frozen=True)
class AttentionVariant:
    """The decisions of one implementation of attention.

    The first word of every `Literal` is the right decision. The catalogue refuses a word that is not there.
    """

    roles: tuple[int, int, int] = (0, 1, 2)  # which of (query, key, value) is used as each of them
    layers: tuple[int, int, int] = (0, 1, 2)  # whose projection each of them goes through
    split: Split = "transpose"
    # "interleave" merges channel by channel, "first head" takes its output for all of them.
    merge: Literal["transpose", "view", "interleave", "first head"] = "transpose"
    normalised: Literal["qk", "q", "k", "kq"] = "qk"  # which get their norm; "kq" gives each the other's
    rotated: Literal["qk", "q", "k", "v", "qkv"] = "qk"  # which of q, k and v get rotary positions
    rotation: Literal["right", "mixed", "unsigned", "opposite"] = "right"  # see `_rewired`
    tiled: Literal["", "k", "v", "kv"] = ""  # which have their heads repeated as 0 1 0 1, not as 0 0 1 1
    scale: Scale = root
    causal: Rule = past
    always_causal: bool = False  # causal even if the code's own argument says that it should not be
    # "first item" and "tiled": see `_exchanged`.
    mask_argument: Literal["as given", "inverted", "ignored", "transposed", "first item", "tiled"] = (
        "as given"
    )
    # "queries": padded queries are hidden, not keys.
    padding: Literal["as given", "inverted", "ignored", "queries", "first item", "tiled"] = "as given"
    joined: Literal["all", "any"] = "all"  # how many of the masks must allow a key for it to be visible
    window: int | None = 0  # how many keys too many are visible; None ignores the window
    # Of the later keys that a window shows.
    ahead: Literal["as given", "ignored", "zero", "one more", "one less"] = "as given"
    # "before" or "after" the mask; "not multiplied" leaves out the factor before the tanh.
    softcap: Literal["before", "after", "dropped", "dropped in pages", "not multiplied"] = "before"
    sinks: SinkLogits = "joined"
    masking: Masking = "fill"
    fill: float = -torch.inf
    axis: int = -1  # of the softmax, among (B, H, T, S)
    normalise: Normalisation = "softmax"
    bias: Literal["added", "subtracted", "scaled"] = "added"  # those of the module; "scaled" with the scores
    block: int = 0  # how many keys are in a block, for a softmax that is computed block by block
    always: bool = False  # masking runs even if the question has no mask
    inverted: bool = False  # hidden keys are visible, and visible ones hidden
    batch: Literal["separate", "together"] = "separate"  # "together": one long sequence
    reach: Reach = "own"  # which keys of a ragged batch are read
    chunk: int | None = None  # keys worked on at a time, if `question.splits` does not say
    stale: Literal["", "k", "v", "kv"] = ""  # what is left over from the previous chunk
    merge_base: float = 1.0  # the logarithm that merges chunks, in units of the one that they are in
    out: Literal["project", "skip"] = "project"
    detach: Literal["", "weights"] = ""  # "weights": no gradient through them

    def answer(self, question: Question, wiring: Wiring, projected: Projected | None = None) -> Answer:
        """Run this variant on a question, in the question's dtype.

        `projected` is the result of `wiring.project`, if the caller already has it.
        """
        # In a ragged batch the padding is what lies beyond an item's length.
        reach: Reach = "all" if self.padding == "ignored" and self.reach == "own" else self.reach
        together, across = self.batch == "together", self.axis == 0
        alone = reach != "own" or together or across
        if question.lengths is not None or (question.layout in RAGGED_LAYOUTS and alone):
            return answer_items(question, lambda item: self._answer(item, wiring), reach, together=together)
        return self._answer(question, wiring, projected)

    def _answer(self, question: Question, wiring: Wiring, projected: Projected | None = None) -> Answer:
        """Run this variant on a question whose items are of equal length."""
        q, k, v = self._project(question, wiring, projected)  # (B, H, T, D), (B, G, S, D), (B, G, S, E)
        B, H, T, D = q.shape
        n = CaseSizes(B, H, k.shape[1], T, k.shape[2] - question.surplus, D, wiring.width or H * D)
        # How many keys are worked on at a time; None if all of them.
        chunk = self.chunk if question.splits is None else -(-n.S // question.splits)
        k, v = self._spread(k, v, n, chunk)  # (B, H, S, D), (B, H, S, E)
        together = self.batch == "together" and question.layout not in RAGGED_LAYOUTS
        if together:
            q, k, v = (x.transpose(0, 1).flatten(1, 2).unsqueeze(0) for x in (q, k, v))  # (1, H, B·T, D)
            n = n._replace(B=1, T=q.shape[2], S=k.shape[2])

        scores = self._score(q, k, question, wiring, n)  # (B, H, T, S)
        allowed = self._allowed(question, n, q.device)
        masked = scores if allowed is None else self._mask_scores(scores, allowed)
        if self.softcap == "after" and question.softcap is not None:
            masked = question.softcap * torch.tanh(masked / question.softcap)
        sinks = wiring.sinks if question.sinks is None else question.sinks
        weights = self._weigh(masked, allowed, self._sink_columns(sinks, n), n, chunk)
        mixed = weights @ v  # (B, H, T, E)

        # Rows without a visible key are free; 0 · inf makes every row NaN, which is what shows this mistake.
        free = None if allowed is None or self.masking == "nan" else (~allowed).all(-1, keepdim=True)
        free = None if free is None else free.expand(*mixed.shape[:-1], 1)
        if together:  # back to one sequence per item
            mixed = mixed.view(H, B, T, -1).transpose(0, 1)
            free = None if free is None else free.view(H, B, T, 1).transpose(0, 1)
        mixed = self._reorder(mixed)
        output, free = wiring.finish(mixed, free, view=self.merge == "view", skip=self.out == "skip")
        return Answer(output, free=free) if together else Answer(output, weights, masked.logsumexp(-1), free)

    def _project(self, question: Question, wiring: Wiring, projected: Projected | None) -> Projected:
        """Return queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, E), with their positions."""
        if self.layers != (0, 1, 2):
            layers = (wiring.query, wiring.key, wiring.value)
            query, key, value = (layers[role] for role in self.layers)
            # What was projected before has gone through the right layers.
            wiring, projected = replace(wiring, query=query, key=key, value=value), None
        projected = projected or wiring.project(question, split=self.split)
        q, k, v = (projected[role] for role in self.roles)
        q, k, v = self._rewired(wiring).position(q, k, v, self.rotated)
        if self.rotation == "opposite" and wiring.rotate is not None:
            known = _known(wiring.rotate)
            # They were turned by θ above, and so end at −θ.
            k = replace(known, frequencies=-2 * known.frequencies)(k, 0)
        return q, k, v

    def _spread(self, k: Tensor, v: Tensor, n: CaseSizes, chunk: int | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values that each query head reads, (B, H, S, D) and (B, H, S, E)."""
        times, keys = n.H // n.G, torch.arange(k.shape[2])
        # The key in the same place of the previous chunk; the first chunk keeps its own.
        late = keys if chunk is None else torch.where(keys >= chunk, keys - chunk, keys)
        sides = []
        for x, role in ((k, "k"), (v, "v")):
            if times > 1:
                x = x.repeat(1, times, 1, 1) if role in self.tiled else x.repeat_interleave(times, 1)
            sides.append(x[:, :, late] if role in self.stale else x)
        return sides[0], sides[1]

    def _score(self, q: Tensor, k: Tensor, question: Question, wiring: Wiring, n: CaseSizes) -> Tensor:
        """Return the scores (B, H, T, S): scaled, capped and with their biases, before the mask."""
        # A declared scale holds unless the mistake is one of the scale.
        scale = wiring.scale if wiring.scale is not None and self.scale is root else self.scale(n)
        scores = (q @ k.mT) * scale  # (B, H, T, S)
        if (cap := question.softcap) is not None:
            if self.softcap == "before" or (self.softcap == "dropped in pages" and question.page is None):
                scores = cap * torch.tanh(scores / cap)
            elif self.softcap == "not multiplied":
                scores = torch.tanh(scores / cap)
        if wiring.bias is not None:
            factor = {"added": 1.0, "subtracted": -1.0, "scaled": scale}[self.bias]
            scores = scores + factor * wiring.bias(n.H, n.T, n.S).to(scores)
        if question.rule is not None:  # which may be ALiBi
            size = (n.B, n.H, n.T, n.S)
            added = question.rule.bias(range(n.T), range(n.S), size, device=q.device)
            scores = scores if added is None else scores + added.to(scores)
        if question.bias is not None:
            scores = scores + question.bias.to(scores) * (scale if self.masking == "scaled" else 1.0)
        return scores

    def _weigh(
        self,
        masked: Tensor,
        allowed: Tensor | None,
        sinks: Tensor | None,
        n: CaseSizes,
        chunk: int | None,
    ) -> Tensor:
        """Return the weights (B, H, T, S) of masked scores; `sinks` join the softmax."""
        empty = None
        if allowed is not None and self.masking == "fill" and self.fill == -torch.inf and self.axis == -1:
            # NaN from a row without a visible key would reach the gradients of the others.
            empty = (~allowed).all(-1, keepdim=True)
            masked = masked.masked_fill(empty, 0.0)
        weights = self._normalise(masked, allowed, sinks, root(n))
        weights = weights if empty is None else weights.masked_fill(empty, 0.0)
        if chunk is not None and self.merge_base != 1.0:
            weights = self._remerge(weights, masked, chunk)
        return weights.detach() if self.detach == "weights" else weights

    def _rewired(self, wiring: Wiring) -> Wiring:
        """Return the wiring with the norms and the rotation of this variant.

        An "opposite" rotation turns keys the other way (see `_project`).
        """
        rotate = wiring.rotate
        if rotate is not None and self.rotation in ("mixed", "unsigned"):
            rotate = replace(_known(rotate), form=self.rotation)
        norms = (wiring.query_norm, wiring.key_norm)
        # Most wirings have neither, and a search for mistakes asks thousands of times.
        if rotate is wiring.rotate and norms == (None, None):
            return wiring
        norms = norms[::-1] if self.normalised == "kq" else norms
        return replace(
            wiring,
            rotate=rotate,
            query_norm=norms[0] if "q" in self.normalised else None,
            key_norm=norms[1] if "k" in self.normalised else None,
        )

    def _reorder(self, mixed: Tensor) -> Tensor:
        """Return the heads' outputs (B, H, T, E) in the order in which this variant concatenates them."""
        if self.merge == "interleave":
            B, H, T, E = mixed.shape
            return mixed.permute(0, 2, 3, 1).reshape(B, T, H, E).transpose(1, 2)
        return mixed[:, :1].expand_as(mixed) if self.merge == "first head" else mixed

    def _remerge(self, weights: Tensor, masked: Tensor, chunk: int) -> Tensor:
        """Weight the chunks of keys by their lse in another base than it is in."""
        parts = torch.split(masked, chunk, -1)
        lse = torch.stack([part.logsumexp(-1) for part in parts], -1)  # (B, H, T, chunks)
        shares = torch.softmax(lse * self.merge_base, -1)
        merged = [part.softmax(-1).nan_to_num() * shares[..., i : i + 1] for i, part in enumerate(parts)]
        return torch.cat(merged, -1)

    def _sink_columns(self, sinks: Tensor | None, n: CaseSizes) -> Tensor | None:
        """Return the sink logits (H, columns) that join the softmax; None if there are none."""
        if sinks is None or self.sinks == "dropped":
            return None
        sinks = sinks.expand(n.H)
        heads = torch.arange(n.H, device=sinks.device)
        taken: dict[SinkLogits, Tensor] = {
            "joined": heads,
            "twice": heads,
            "of the group": heads // (n.H // n.G),
            "of the group, tiled": heads % n.G,
            "of the next head": (heads + 1) % n.H,
            "of the previous head": (heads - 1) % n.H,
            "of the first head": heads * 0,
        }
        return sinks[taken[self.sinks]][:, None].expand(-1, 2 if self.sinks == "twice" else 1)

    def _allowed(self, question: Question, n: CaseSizes, device: torch.device) -> Tensor | None:
        """Return the mask as this variant builds it, or None if the question has none."""
        causal = question.causal or (self.always_causal and question.flag is not None)
        masked = causal or question.window is not None or question.ahead is not None
        masked = masked or self.always or question.rule is not None
        if not masked and question.mask is None and question.padding is None:
            return None
        S = n.S + question.surplus
        q, k = torch.arange(n.T, device=device)[:, None], torch.arange(S, device=device)
        parts: list[Tensor] = []
        if causal:
            parts.append(self.causal(q, k, n))
        if question.window is not None and self.window is not None:
            parts.append(k > q + n.S - n.T - question.window - self.window)
        if question.ahead is not None and self.ahead != "ignored":
            more = question.ahead
            ahead = {"as given": more, "zero": 0, "one more": more + 1, "one less": more - 1}[self.ahead]
            parts.append(k <= q + n.S - n.T + ahead)
        if question.rule is not None:
            parts.append(question.rule.tile(range(n.T), range(n.S), (n.B, n.H, n.T, n.S), device=device))
        if question.mask is not None and self.mask_argument != "ignored":
            mask = ~question.mask if self.mask_argument == "inverted" else question.mask
            mask = mask.mT if self.mask_argument == "transposed" else mask
            parts.append(_exchanged(mask, self.mask_argument, n) if mask.ndim == 4 else mask)
        if question.padding is not None and self.padding != "ignored":
            is_token = ~question.padding if self.padding == "inverted" else question.padding
            queries = self.padding == "queries"
            mask = is_token[:, None, :, None] if queries else is_token[:, None, None, :]
            parts.append(_exchanged(mask, self.padding, n))
        allowed = torch.ones(1, 1, n.T, S, dtype=torch.bool, device=device)
        if self.joined == "any" and parts:
            allowed = allowed & functools.reduce(torch.logical_or, parts)
        else:
            allowed = functools.reduce(torch.logical_and, parts, allowed)
        return ~allowed if self.inverted else allowed

    def _mask_scores(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Apply the mask to the scores."""
        match self.masking:
            case "fill" | "scaled":
                return scores.masked_fill(~allowed, self.fill)
            case "add fill":
                return scores + (~allowed).to(scores) * self.fill
            case "add":
                return scores + allowed.to(scores)
            case "add hidden":
                return scores + (~allowed).to(scores)
            case "multiply":
                return scores * allowed.to(scores)
            case "nan":
                return scores + (~allowed).to(scores) * -torch.inf
            case "after":
                return scores

    def _normalise(
        self, masked: Tensor, allowed: Tensor | None, sinks: Tensor | None, scale: float
    ) -> Tensor:
        """Turn scores into weights; `sinks` join the softmax."""
        if sinks is not None:
            columns = sinks.to(masked)[:, None].expand(*masked.shape[:-1], -1)
            joined = torch.cat([masked, columns], -1)
            return torch.softmax(joined, self.axis)[..., : masked.shape[-1]]
        match self.normalise:
            case "softmax" | "renormalise":
                weights = torch.softmax(masked, self.axis)
            case "twice":
                weights = torch.softmax(torch.softmax(masked, self.axis), self.axis)
            case "scaled":
                weights = torch.softmax(masked, self.axis) * scale
            case "exp":
                weights = masked.exp()
                weights = weights / weights.sum(self.axis, keepdim=True)
            case "none":
                weights = masked
            case "log":
                weights = torch.log_softmax(masked, self.axis)
            case "not divided":
                weights = (masked - masked.amax(self.axis, keepdim=True)).exp()
            case "mean":
                parts = torch.split(masked, self.block, -1)
                weights = torch.cat([part.softmax(-1).nan_to_num() for part in parts], -1) / len(parts)
            case "stale" | "stale output" | "stale sum":
                weights = self._without_rescaling(masked)
        if self.masking == "after" and allowed is not None:
            weights = weights * allowed.to(weights)
            if self.normalise == "renormalise":
                weights = weights / weights.sum(self.axis, keepdim=True)
        return weights

    def _without_rescaling(self, masked: Tensor) -> Tensor:
        """Return the weights of a softmax in blocks that does not rescale for a new maximum."""
        highest = torch.cat(
            [block.amax(-1, keepdim=True) for block in torch.split(masked, self.block, -1)], -1
        )
        running = highest.cummax(-1).values.repeat_interleave(self.block, -1)[..., : masked.shape[-1]]
        last = running[..., -1:]
        stale, right = (masked - running).exp(), (masked - last).exp()
        over = right if self.normalise == "stale sum" else stale
        under = right if self.normalise == "stale output" else stale
        return over / under.sum(-1, keepdim=True)


def _exchanged(mask: Tensor, how: str, n: CaseSizes) -> Tensor:
    """Return a mask (B, 1, T, S) with the items' masks exchanged.

    "first item" gives every item that of the first one. "tiled" repeats the batch for each head, as
    `repeat(H, 1, 1)` does, where heads of one item come after each other.
    """
    if how == "tiled":
        item = torch.arange(n.B * n.H, device=mask.device) % n.B
        return mask[item].view(n.B, n.H, *mask.shape[2:])
    return mask[:1] if how == "first item" else mask


CORRECT = AttentionVariant()


def masks_of(question: Question) -> int:
    """Return how many masks a question has, of which each may hide keys."""
    masks = (question.mask, question.padding, question.window, question.rule)
    return sum(mask is not None for mask in masks) + question.causal


# What a field of a variant acts on, and whether a question or a module has it.
ACTS_ON: dict[str, tuple[str, Callable[[Question, Wiring], bool]]] = {
    "causal": ("causal mask", lambda q, wiring: q.causal),
    "always_causal": ("argument that switches the causal mask off", lambda q, wiring: q.flag is False),
    "window": ("window", lambda q, wiring: q.window is not None),
    "ahead": ("window to the right", lambda q, wiring: q.ahead is not None),
    "softcap": ("soft cap", lambda q, wiring: q.softcap is not None),
    "mask_argument": ("mask", lambda q, wiring: q.mask is not None),
    "padding": ("padding", lambda q, wiring: q.padding is not None),
    "joined": ("second mask", lambda q, wiring: masks_of(q) > 1),
    "sinks": ("sink logit", lambda q, wiring: wiring.sinks is not None or q.sinks is not None),
    "rotated": ("rotation", lambda q, wiring: wiring.rotate is not None),
    "rotation": ("rotation", lambda q, wiring: wiring.rotate is not None),
    "normalised": ("norm", lambda q, wiring: wiring.query_norm is not None or wiring.key_norm is not None),
    "bias": ("bias", lambda q, wiring: wiring.bias is not None),
}


def lacks(field: str, question: Question, wiring: Wiring) -> str:
    """Return what a field of a variant acts on, if a question and a module have none; else ""."""
    what, is_there = ACTS_ON.get(field, ("", lambda q, wiring: True))
    return "" if is_there(question, wiring) else what
