"""`Strip`: the map of one layer, which grows while a model generates.

Whether a call continues the previous ones is decided by comparing the keys. If they agree, the call's queries
and its new keys are appended and the masks are joined into one. This also works for sliding-window caches,
for beam search, which reorders the batch, and for static caches, which are overwritten in place. A call of a
linear layer continues the previous ones if it begins with the state that the last one returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import LinearAttentionMap
from regard.recorder.certificates.certificate import join_evidence, sampled_rows
from regard.recorder.generation.mask_join import CallSizes, Segment, join_masks
from regard.recorder.layer import VALUES, Layer, LayerData, LayerMap
from regard.recorder.map_preparation import ScoreSettings
from regard.recorder.waiting_call import JudgedCall

PROBES = 64  # the number of keys that are kept for comparison with later calls if not all are in memory


class StripStep(NamedTuple):
    """How a call continues a strip."""

    kind: Literal["after", "again", "beside"]
    """New keys after the old ones, the same keys again (as an encoder's), or other keys beside them."""
    old: tuple[Tensor, ...] = ()
    """The keys (B, G, n, D) or states that were compared, as the strip has them, in parts."""
    new: tuple[Tensor, ...] | None = None
    """The same keys as the call has them, if they differ because a beam search has reordered the batch."""
    kept: int | None = None
    """The number of tokens that are left before the call, if it takes later ones back; None for all of them.

    Speculative decoding does so with guesses that were not accepted."""

    def match(self) -> Tensor | None:
        """Return which old sequences each new sequence may continue, boolean (B, B)."""
        if not self.old:
            return None
        parts = [
            torch.stack([(old == sequence).flatten(1).all(1) for sequence in new])
            for old, new in zip(self.old, self.old if self.new is None else self.new, strict=True)
        ]
        return torch.stack(parts).all(0)


def _matched(
    kind: Literal["after", "again"], olds: tuple[Tensor, ...], news: tuple[Tensor, ...]
) -> StripStep | None:
    """Return the step of a call whose keys or states equal the strip's, the batch in any order."""
    # Nearly always: only a beam search puts the batch in another order.
    if all(map(torch.equal, olds, news)):
        return StripStep(kind, olds)
    step = StripStep(kind, olds, news)
    match = step.match()
    return step if match is not None and bool(match.any(1).all()) else None


class Strip:
    """A layer so far: the map of its first call, and what later calls have added.

    `layer` is the layer as it is stored, whose map may be in a file by now; `m` is its map. `state` is what
    the call of a linear layer returned, (B, H, D, E).
    """

    def __init__(self, layer: Layer, m: LayerMap, state: Tensor | None = None) -> None:
        self.layer, self.state = layer, state
        self.mask, self.scores = m.mask, ScoreSettings(m)
        self.T, self.S = m.matrix[2:]
        self.first_keys = self.S
        # The keys (B, G, n, D) of the first call: those in memory, or copies of a sample if none are kept.
        is_kept = layer.in_memory and layer.data().map is m
        self.probed = sampled_rows(self.S, self.S if is_kept else PROBES, m.device)
        # Numbers in a tensor give a copy: a view would keep all keys in memory, of which a folder or
        # statistics are to keep none.
        self.probes = m.k if is_kept else m.k[:, :, self.probed]
        self.order: Tensor | None = None  # how the first call's batch has been reordered since
        self.added: dict[str, list[Tensor]] = {name: [] for name in (*m.TOKEN_FIELDS, VALUES)}

    @property
    def grown(self) -> bool:
        """Whether anything was added to the first call, or taken back."""
        return bool(self.added["q"]) or self.layer.shape[2] > self.T

    def step(self, m: LayerMap, state: Tensor | None = None) -> StripStep | None:
        """Return how a call continues the strip, or None if it does not.

        `m` is the call's map, with the same heads and dtype as the strip; `state` is what a linear layer
        began with.
        """
        B, H, T, S = m.matrix
        if self.layer.is_linear or isinstance(m, LinearAttentionMap):
            # The keys of a recurrence are gone after its call; what the next one begins with is the state.
            if state is None or self.state is None or state.shape != self.state.shape:
                return None
            # A cache may store the state in another dtype.
            return _matched("after", (self.state.to(state),), (state,))
        if self.layer.shape[:2] != (B, H) or m.k.shape[1] != self.probes.shape[1]:
            return None
        if self.scores != ScoreSettings(m):
            return None
        cached = S - T  # old keys that this call still has, the last ones
        # As many queries as keys on the same keys are the same text once more, not a continuation of it.
        continues = cached > 0 or self.layer.stack == "cross"
        if continues and S == self.S and (step := self._compare("again", m.k, 0)) is not None:
            return step
        if not 0 < cached <= self.S:
            return None
        step = self._compare("after", m.k[:, :, :cached], self.S - cached)
        return self._rewind(m.k[:, :, :cached]) if step is None else step

    def _rewind(self, k: Tensor) -> StripStep | None:
        """Return the step of a call whose old keys k are the first ones of the strip, but not all of them."""
        kept = k.shape[2]
        if kept >= self.S or not self.can_rewind:
            return None
        added = (part.to(self.probes.device) for part in self.added["k"])
        own = torch.cat([self.probes, *added], 2)[:, :, :kept]
        return StripStep("after", (own,), kept=kept) if torch.equal(own, k) else None

    @property
    def can_rewind(self) -> bool:
        """Whether its last rows can be taken back: its keys are in memory, and its mask goes by position."""
        is_whole = self.T == self.S and self.probes.shape[2] == self.first_keys
        return is_whole and all(mask.positional for mask in self.mask.conjuncts())

    def rewind(self, kept: int) -> None:
        """Take back all tokens but the first ones."""
        for parts in self.added.values():
            joined = torch.cat(parts, 2)[:, :, : max(0, kept - self.first_keys)] if parts else None
            parts[:] = [] if joined is None else [joined]
        if kept < self.first_keys:
            self.probes, self.first_keys = self.probes[:, :, :kept], kept
            self.probed = self.probed[:kept]
        self.T = self.S = kept

    def _compare(self, kind: Literal["after", "again"], k: Tensor, first: int) -> StripStep | None:
        """Return the step if keys k equal the strip's from number `first` on, the batch in any order."""
        start, stop = torch.searchsorted(self.probed, self.probed.new_tensor([first, first + k.shape[2]]))
        at = self.probed[start:stop] - first
        new = k[:, :, : len(at)] if len(self.probed) == self.first_keys else k[:, :, at]
        pairs = [(self.probes[:, :, start:stop], new)]
        if self.added["k"]:
            later = torch.cat(self.added["k"], 2)[:, :, max(first - self.first_keys, 0) :]
            pairs.append((later, k[:, :, max(self.first_keys - first, 0) :]))
        if any(old.shape != new.shape for old, new in pairs) or not any(old.shape[2] for old, _ in pairs):
            return None
        olds, news = zip(*pairs, strict=True)
        return _matched(kind, olds, news)

    def extend(self, step: StripStep, call: JudgedCall, order: Tensor | None, mask: Mask) -> None:
        """Append a call; of its old keys nothing is kept.

        `order` says for each batch entry which old sequence it continues; None means its own. `mask` is the
        mask of all rows.
        """
        if order is not None:
            self.order = order if self.order is None else self.order[order]
            self.probes = self.probes[order]
            for parts in self.added.values():
                parts[:] = [part[order] for part in parts]
        T, S = call.sizes
        new = {"after": T, "again": 0, "beside": S}[step.kind]
        for name, x in call.layer.data().tensors().items():
            if name in self.added:
                # A view of the new keys would hold the old ones in memory as well.
                is_cut = new < S and name in ("k", VALUES)
                self.added[name].append(x[:, :, S - new :].clone() if is_cut else x)
        self.T, self.S = self.T + T, self.S + new
        self.mask, self.state = mask, call.ended
        self.layer.evidence = join_evidence(self.layer.evidence, call.layer.evidence, mask)

    def finished(self) -> Layer:
        """Return the whole layer."""
        layer, m, tensors = self.layer, self.layer.map, self.layer.data().tensors()
        for name in self.added.keys() & tensors.keys():
            first = tensors[name] if self.order is None else tensors[name][self.order]
            if self.first_keys < m.matrix[3]:  # some of its tokens were taken back
                first = first[:, :, : self.first_keys]
            tensors[name] = torch.cat([first, *(part.to(first.device) for part in self.added[name])], 2)
        values = tensors.pop(VALUES, None)
        # Rows that were taken back had been counted.
        evidence = replace(layer.evidence, rows=min(layer.evidence.rows, self.T), total_rows=self.T)
        return layer._with_data(LayerData(m._with_tokens(tensors, self.mask), values), evidence)


def take_back_guesses(cache: Any, strips: Iterable[Strip]) -> int | None:
    """Take back the last guesses of a speculative decoding, which the model's cache does not hold now.

    Returns the number of tokens that are left; None if nothing was taken back.
    """
    # Transformers' caches say how long they are; other code has caches that do not.
    length: int | None = getattr(cache, "get_seq_length", lambda: None)()
    strips = [strip for strip in strips if not strip.layer.is_linear]
    if not length or not strips or not all(x.can_rewind and x.T == strips[0].T > length for x in strips):
        return None
    for strip in strips:
        strip.rewind(length)
    return length


class StripMasks:
    """Joins the masks of strips with those of what is added; layers that share theirs share the result."""

    def __init__(self) -> None:
        self._masks: dict[tuple[object, ...], tuple[Mask, ...]] = {}

    def clear(self) -> None:
        """Forget the masks of a forward pass."""
        self._masks.clear()

    def join(self, strip: Strip, step: StripStep, call: JudgedCall, order: Tensor | None) -> Mask:
        """Return the mask of a strip with a call; layers that share their masks share the result."""
        if strip.layer.is_linear:
            return strip.mask  # causal, whatever is added
        m, before = call.map, CallSizes(strip.T, strip.S)
        B, H, *_ = m.matrix
        key = (id(strip.mask), id(m.mask), step.kind, before, call.sizes, m.device)
        if key not in self._masks:
            masks = Segment(strip.mask, before), Segment(m.mask, call.sizes)
            mask = join_masks(*masks, step.kind, order, B, H, m.device)
            # The two masks are stored to keep them alive, so that no id is used twice.
            self._masks[key] = (mask, strip.mask, m.mask)
        return self._masks[key][0]


def padding_of_strips(strips: Iterable[Strip], shape: torch.Size) -> Tensor | None:
    """Return the padding (B, T) in the layers' own masks, for models that take no `attention_mask`."""
    for strip in strips:
        for conjunct in strip.mask.conjuncts():
            is_token = conjunct.key_padding(shape[1])  # (B, S)
            if is_token is not None and is_token.shape == shape:
                return is_token.cpu()
    return None


def batch_order(steps: list[StripStep], ids: Tensor | None) -> tuple[Tensor | None, str | None]:
    """Return which old sequence each batch entry continues, None for its own; and a problem, if any.

    - `steps`: how each layer goes on.
    - `ids` (B, T): the tokens so far, which say whether two sequences are interchangeable.
    """
    if all(step.new is None for step in steps):
        return None, None
    # The layers of a model may be on several devices.
    matches = [match.cpu() for step in steps if (match := step.match()) is not None]
    common = torch.stack(matches).all(0)  # (B, B)
    if not bool(common.any(1).all()):
        return None, "its batch was reordered, and not in the same way in all layers"
    order = common.int().argmax(1)
    if ids is None:
        unclear = common & ~torch.nn.functional.one_hot(order, len(order)).bool()
    else:  # sequences with the same past tokens are interchangeable
        unclear = common & (ids[order][:, None] != ids[None]).any(-1)
    doubt = "beams changed places, and the layers that were captured do not show which went where"
    return order, doubt if bool(unclear.any()) else None
