"""`Recording`: collects the attention calls of a running model and assembles them into a `Capture`.

A `Listener` or an adapter passes every attention call to `Recording.record`, with the layer that made it. The
recording compares each call with the model's own output, joins the calls of one generation into one map per
layer, and hands the layers to a store. It knows tensors, layer ids and which layers and heads were selected;
it does not know where the tensors come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall
from regard.recorder.call_receiver import CallReceiver, PassTokens, Slot
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.certificate import ShardEvidence
from regard.recorder.contributions.residual_stream import ResidualStream
from regard.recorder.contributions.stream_recorder import StreamRecorder
from regard.recorder.generation.strips import (
    Strip,
    StripMasks,
    StripStep,
    batch_order,
    padding_of_strips,
    take_back_guesses,
)
from regard.recorder.layer import LayerId, LayerList, shard_evidence
from regard.recorder.map_preparation import MaskCopies, without_autocast, without_gradients
from regard.recorder.picture_reader import PictureReader, ReadPictures
from regard.recorder.placement import ShardId
from regard.recorder.rank_group import RankGroup
from regard.recorder.sources import token_order
from regard.recorder.sources.structure_of_models.vision_tower import PixelInputs
from regard.recorder.storage.stores import Store
from regard.recorder.tokens_of_maps.text_layout import add_tokens, join_token_rows
from regard.recorder.tokens_of_maps.token_axes import place, why_unplaced
from regard.recorder.waiting_call import JudgedCall, WaitingCalls
from regard.support.plain_data import read_plain
from regard.support.torch_internals import DisableTorchFunction, current_graph_task

UNUSED = "the module that computed it did not use its output"
EARLIER_STATE = "it goes on from a state of earlier tokens, which its map does not show"
OTHER_TEXT = "it read another text than the one of this capture"


class Recording(CallReceiver):
    """The state of one capture: which layers and heads are selected, and what has been recorded so far.

    - `layers`, `heads`, `dtype`, `values`, `verify`, `overviews`: the options of `regard.capture`.
    - `store`: where the layers are kept; None keeps them in memory.
    - `model`: the model's name.
    - `decode`: turns token ids (B, T) into the text of each token.
    - `stream`: records the residual stream; None records attention alone.
    - `picture_reader`: reads the pictures of the forward passes; None keeps none.
    - `shard`, `ranks`: which part of the capture this process makes, and the processes that make it together.
    """

    takes_recurrences = True
    watches_tokens = True

    def __init__(
        self,
        *,
        layers: Collection[int | str] | None = None,
        heads: Collection[int] | None = None,
        dtype: torch.dtype | None = None,
        values: bool = False,
        verify: bool = False,
        overviews: bool = False,
        store: Store | None = None,
        model: str = "",
        decode: Callable[[Tensor], list[list[str]]] | None = None,
        stream: StreamRecorder | None = None,
        picture_reader: PictureReader | None = None,
        shard: ShardId | None = None,
        ranks: RankGroup | None = None,
    ) -> None:
        super().__init__()
        self.ranks = ranks
        for name, selection in (("layers", layers), ("heads", heads)):
            if isinstance(selection, int | str):
                raise ValueError(f"{name}: expected a list, as [{selection!r}], got {selection!r}")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype: expected a floating dtype such as torch.bfloat16, got {dtype!r}")
        if heads is not None and not all(isinstance(head, int) for head in heads):
            raise ValueError(f"heads: expected numbers of heads, got {list(heads)}")
        self.layers = None if layers is None else {str(layer) for layer in layers}
        self.heads = None if heads is None else sorted(set(heads))
        self.dtype, self.overviews = dtype, overviews
        self.verify = self.keeps_arguments = verify
        self.probed: Mapping[str, str | None] = {}
        """By layer name: why its axes are not the tokens, or None, where tokens were changed to see it."""
        self.store = Store() if store is None else store
        self.decode, self.stream, self.picture_reader = decode, stream, picture_reader
        self.seen = Capture(
            model=model,
            is_whole=layers is None and heads is None,
            shard=shard,
            residual=None if stream is None else ResidualStream(),
        )
        self._waiting = WaitingCalls(self.store, dtype, values, overviews)
        self._edits: dict[str, None] = {}  # of the interventions under which this forward pass runs, in order
        self._new_pictures: ReadPictures | None = None  # of this forward pass
        self._pictures: ReadPictures | None = None  # of the forward passes that `seen` holds
        self._mask_copies = MaskCopies()
        self._strips: dict[Slot, Strip] = {}
        # What this forward pass adds to its layers.
        self._additions: list[tuple[Strip, StripStep, JudgedCall]] = []
        self._started: dict[Slot, Strip] = {}  # the strips that this forward pass has started
        self._prompt: int | None = None  # of the generation to which this forward pass belongs
        self._guesses: Any = None  # the cache of a model that was given several tokens after others
        self._joined_masks = StripMasks()  # of this forward pass

    def selects(self, layer_id: LayerId) -> bool:
        """Whether this layer is one of those to record."""
        return self.layers is None or not self.layers.isdisjoint(layer_id.names)

    def expect(self, layer_ids: Collection[LayerId]) -> None:
        """Announce the layers whose attention a source is going to see."""
        super().expect(layer_ids)
        self.store.expect(sum(self.selects(layer_id) for layer_id in layer_ids))

    def record(self, layer_id: LayerId, call: Call) -> Call:
        """Record an attention call that a module has made, and return it."""
        is_again = isinstance(call, AttentionCall) and call.again
        if current_graph_task() != -1 or is_again:
            return call  # recomputed in a backward pass (gradient checkpointing), and recorded before
        # Without `DisableTorchFunction` every operation here goes through the mode that listens to the model.
        with self._lock, token_order.Pause(), DisableTorchFunction():
            if not self._is_alone():
                return call
            if isinstance(call, UnreadableCall):
                self.unreadable[layer_id.name] = call.reason
            elif self._other_text and call.problem is None:
                self._take(layer_id, call._replace(problem=OTHER_TEXT))
            else:
                self._take(layer_id, call)
        return call

    def disown(self, slot: Slot) -> None:
        """Learn that the output of an attention call was not used by the module that computed it."""
        self._amend(slot, problem=UNUSED)

    def unplace(self, slot: Slot, reason: str) -> None:
        """Learn that the axes of an attention call are not texts, heads and tokens."""
        self._amend(slot, unplaced=reason)

    def _amend(self, slot: Slot, **reasons: Any) -> None:
        """Add reasons to the evidence of the layer that is being recorded, where it has none."""
        with self._lock:
            self._judge_waiting()
            if (strip := self._strips.get(slot)) is not None:
                evidence = strip.layer.evidence
                new = {name: getattr(evidence, name) or reason for name, reason in reasons.items()}
                strip.layer.evidence = dataclasses.replace(evidence, **new)

    def _begin(self, tokens: PassTokens | None = None) -> None:
        super()._begin(tokens)
        self._prompt = self.prompt

    def _check_pass(self) -> None:
        """Judge the calls of a forward pass that has ended."""
        with self._lock:
            self._judge_waiting()

    def _take_pixels(self, pixels: PixelInputs | None) -> None:
        """Read the pictures that this forward pass reads, as they are now."""
        if self.picture_reader is not None and self._new_pictures is None:
            self._new_pictures = self.picture_reader.read(pixels)

    def _take(self, layer_id: LayerId, call: AttentionCall) -> None:
        """Take a call, which waits for the end of its forward pass: no GPU is asked for numbers until then.

        What is kept of it is copied now: the model may write to its tensors later.
        """
        slot, layer_id = self._locate(layer_id, call)
        # Now: an intervention may be closed before the forward pass is finished here.
        self._edits |= dict.fromkeys(text for editor in self.editors() for text in editor.descriptions())
        if self.stream is not None and call.recurrence is None:
            self.stream.hear(layer_id, call)
        if not self.selects(layer_id):
            return
        heads = self._selected_heads(call)
        if heads == []:
            return  # the selected heads are on other ranks
        with without_gradients(), without_autocast(call.q.device):
            batch = () if self._tokens is None else self._tokens.batch
            changes = {
                "mask": self._mask_copies.own(call.mask),
                "whole_mask": None if call.whole_mask is None else self._mask_copies.own(call.whole_mask),
                "unplaced": why_unplaced(call, self.is_known(layer_id.name), self.order, batch),
            }
            self._waiting.add(slot, layer_id, call, changes, heads, self.verify)
        is_whole_pass = self.running > 0 and self.stream is None
        if not (is_whole_pass and self._waiting.may_grow(not self.seen.layers)):
            self._judge_waiting()

    def _judge_waiting(self) -> None:
        """Compare the calls that wait with the model's own output, and add them to their layers."""
        if (device := self._waiting.device) is None:
            return
        # The comparison is not the model's, and is to cost as little as it can.
        with token_order.Pause(), DisableTorchFunction(), without_gradients(), without_autocast(device):
            for call in self._waiting.judge(lambda slot: slot not in self._strips):
                self._add_call(call)

    def _add_call(self, call: JudgedCall) -> None:
        """Add a call to the layer that it continues, or as a new layer."""
        # A call that continues the layer's earlier calls is added to them; any other starts a new layer, and
        # if the layer exists already, a new pass.
        strip, step = self._strips.get(call.slot), None
        if strip is not None and self.store.keeps_maps and call.is_whole:
            step = StripStep("beside") if call.part == "beside" else strip.step(call.map, call.began)
            if step is not None and step.kept is not None and self.stream is not None:
                step = None  # what the residual stream has added cannot be taken back
        if step is None and call.began is not None and bool(call.began.any()):
            problem = call.layer.evidence.problem or EARLIER_STATE
            call.layer.evidence = dataclasses.replace(call.layer.evidence, problem=problem)
        if strip is None or step is None:
            if strip is not None:
                self._finish_pass()
            self._start_strip(call)
        elif call.part is not None:
            strip.extend(step, call, None, self._joined_masks.join(strip, step, call, None))
        else:
            self._additions.append((strip, step, call))

    def _selected_heads(self, call: AttentionCall) -> list[int] | None:
        """Return the indices of the selected heads that this rank has; None for all of a call's heads."""
        if self.heads is None:
            return None
        total = call.total_heads
        if not self.heads or not all(0 <= head < total for head in self.heads):
            raise ValueError(f"heads: expected numbers from 0 to {total - 1}, got {list(self.heads)}")
        return call.local_heads(self.heads)

    def _start_strip(self, call: JudgedCall) -> None:
        """Store a new layer, and start the strip that later calls may extend."""
        stored = self.store.put(call.layer)
        self.seen.layers.append(stored)
        self._strips[call.slot] = self._started[call.slot] = Strip(stored, call.map, call.ended)

    def _finish_forward(self) -> None:
        """Finish a forward pass: extend the layers by what it added, and the tokens by what it read.

        Only now is the order known into which a beam search has put the batch. A single layer may not show it
        (an encoder's keys are the same for all beams, and a sliding window evicts the keys in which they
        differ), but all layers together do.
        """
        self._judge_waiting()
        additions, self._additions = self._additions, []
        order, problem = batch_order([step for _, step, _ in additions], self._read_ids())
        for strip, step, call in additions:
            if step.kind == "after" and self.seen.boundary is None:
                # A decoder's prompt is its start token, and not what `generate` was given.
                is_prompt_known = self._prompt is not None and self.seen.target_ids is None
                # Without `generate`, as in a loop of the user's, the first step of one token ends the prompt.
                if is_prompt_known or call.sizes.T == 1:
                    self.seen.boundary = self._prompt if is_prompt_known else strip.T
            if problem is not None:
                call.layer.evidence = dataclasses.replace(call.layer.evidence, problem=problem)
            if step.kept is not None:
                strip.rewind(step.kept)
            strip.extend(step, call, order, self._joined_masks.join(strip, step, call, order))
        self._joined_masks.clear()
        if any(step.kind == "after" and call.sizes.T > 1 for _, step, call in additions):
            self._guesses = self.cache  # it may hold fewer tokens soon
        tokens, self._tokens = self._tokens, None
        if tokens is not None and (additions or self._started):
            if not additions and self._reads_other_text(tokens):
                self._finish_pass()
            kept = {step.kept for _, step, _ in additions if step.kept is not None}
            add_tokens(self.seen, tokens, bool(additions), order, min(kept, default=None))
        # After another text has started a new pass, whose edits they are.
        if additions or self._started:
            self.seen.edits = tuple(dict.fromkeys((*self.seen.edits, *self._edits)))
        self._edits = {}
        if self.stream is not None and self.seen.residual is not None:
            self.stream.finish(self.seen.residual, order is not None)
        if self._new_pictures is not None and (additions or self._started):
            self._pictures = self._new_pictures
        self._new_pictures = None
        self._started.clear()

    def _read_ids(self) -> Tensor | None:
        """Return the ids that the layers which generate have read: of the decoder, where there are two."""
        return self.seen.ids if self.seen.target_ids is None else self.seen.target_ids

    def _reads_other_text(self, tokens: PassTokens) -> bool:
        """Whether this forward pass reads other tokens than the layers that ran before it."""
        pairs = ((tokens.ids, self.seen.ids), (tokens.target_ids, self.seen.target_ids))
        return len(self._strips) > len(self._started) and any(
            new is not None and old is not None and not torch.equal(new, old) for new, old in pairs
        )

    def _finish_pass(self) -> None:
        """Move the layers of earlier forward passes to `seen.passes`: this one does not continue them.

        Layers may disagree: with several caches of one text, the keys of the first layer show no difference.
        What this forward pass has recorded so far, also of layers that seemed to continue, starts a new pass.
        """
        started, self._started = self._started, {}
        continuing, self._additions = [call for *_, call in self._additions], []
        layers = [strip.layer for strip in started.values()]
        self.seen.layers = LayerList(x for x in self.seen.layers if all(x is not layer for layer in layers))
        for slot in started:
            del self._strips[slot]
        self._finish_layers()
        earlier = dataclasses.replace(self.seen, passes=[])  # `missing` is shared, and filled at the end
        self.seen.passes.append(earlier)
        self.seen.layers = LayerList(layers)
        self._strips.update(started)
        self._started = started
        self.seen.ids = self.seen.target_ids = self.seen.tokens = self.seen.target_tokens = None
        self.seen.attention_mask = self.seen.boundary = None
        self.seen.residual = None if self.stream is None else ResidualStream()
        self.seen.edits = ()
        self.seen.pictures = self._pictures = None
        for call in continuing:
            self._start_strip(call)

    def first_queries(self) -> list[Tensor]:
        """Return the queries of the calls so far, up to the first that are not in memory as they were."""
        queries: list[Tensor] = []
        for strip in self._strips.values():
            m = strip.layer.data().map if strip.layer.in_memory else None
            if self.dtype is not None or self.heads is not None or strip.grown or m is None:
                break
            queries.append(m.q)
        return queries

    def _finish_layers(self) -> None:
        """Store the layers that have grown, and complete the tokens that belong to them."""
        seen = self.seen
        length = take_back_guesses(self._guesses, self._strips.values())
        self._guesses = None
        if length is not None and seen.ids is not None:
            seen.ids = seen.ids[:, :length]
        for strip in self._strips.values():
            if strip.grown:
                layer = self.store.put(strip.finished(), instead_of=strip.layer)
                seen.layers[seen.layers.index(strip.layer)] = layer
        for layer in seen.layers:
            layer.evidence = place(layer, self.is_known(layer.name), seen.ids, seen.target_ids, self.probed)
        if seen.attention_mask is None and seen.ids is not None:
            seen.attention_mask = padding_of_strips(self._strips.values(), seen.ids.shape)
        if seen.attention_mask is not None and bool(seen.attention_mask.all()):
            seen.attention_mask = None
        self._strips.clear()
        if self.decode is not None:
            seen.tokens = None if seen.ids is None else self.decode(seen.ids)
            seen.target_tokens = None if seen.target_ids is None else self.decode(seen.target_ids)
        if self.picture_reader is not None and self._pictures is not None:
            seen.pictures = self.picture_reader.locate(self._pictures, seen.layers, seen.ids)
        seen.seal()

    def close(
        self, missing: Mapping[str, str] | None = None, other_mixers: Mapping[str, str] | None = None
    ) -> None:
        """Finish the capture. `missing` is attention that was not captured, `other_mixers` is none."""
        if self.refusal is not None:
            self.seen.layers.clear()
            raise RuntimeError(self.refusal)
        with torch.no_grad():
            self._finish_forward()
            if self.ranks is not None:
                join_token_rows(self.seen, self.ranks)
            self.seen.missing.update(missing or {})  # shared with the earlier passes, as the next
            self.seen.other_mixers.update(other_mixers or {})
            self._finish_layers()
        is_empty = not self.seen.layers and self.seen.shard is None
        if self.forwards and self.layers is not None and is_empty and self._names:
            keys = ", ".join(map(repr, self._names))
            raise ValueError(
                f"layers: expected some of those that ran ({keys}), got {', '.join(sorted(self.layers))}"
            )
        if self.seen.layers or self.seen.shard is not None:
            self.store.finish(self.seen)
        if self.ranks is not None:
            own = [shard_evidence(layer, layer.evidence) for layer in self.seen.layers]
            others = self.ranks.exchange_plain(own)
            del others[self.ranks.rank]
            self.seen.elsewhere = tuple(
                x for data in others for x in read_plain(list[ShardEvidence], data, "layers")
            )
