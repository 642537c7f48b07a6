"""The life of an attention call: it waits until its forward pass ends, and is then compared with the model.

A `WaitingCall` has what the comparison needs; a `JudgedCall` is a layer by itself, with the evidence for it,
which starts the map of its layer or continues it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder.attention_call import AttentionCall, Part, Recurrence
from regard.recorder.call_receiver import Slot
from regard.recorder.certificates.certificate import KERNEL_OUTPUT, ROWS, Evidence, sampled_rows
from regard.recorder.certificates.linear_certificate import examine_linear
from regard.recorder.certificates.output_comparison import ComparedCall, at_rows, judge
from regard.recorder.generation.mask_join import CallSizes
from regard.recorder.layer import Layer, LayerId, LayerMap
from regard.recorder.map_preparation import cast_map, own_memory, select_heads
from regard.recorder.storage.stores import Store
from regard.recorder.summary import summarise_together, summary_size

WAITING_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # that calls may hold beside the capture itself
SUMMARY_SHARE = 4  # of these, one part in so many where a capture keeps summaries only, to take little memory
KEPT = ("q", "k", "v", "lse", "sinks", "output", "weights")
"""The tensors that are kept of a call until it is judged, and then in part of its layer."""
COMPARED = ("output", "weights", "gate")
"""Those of which only the rows that are compared are kept."""


class WaitingCall(NamedTuple):
    """An attention call that is judged when the forward pass ends, in memory of its own."""

    slot: Slot
    layer_id: LayerId
    call: AttentionCall  # whose output, weights and gate have the rows that are compared
    rows: Tensor
    heads: list[int] | None  # the selected ones that this rank has; None for all


class JudgedCall(NamedTuple):
    """An attention call that has been compared with the model's own output, as a layer by itself."""

    slot: Slot
    layer: Layer
    part: Part | None = None
    is_whole: bool = True  # whether this process has all rows of it, which later calls may continue
    began: Tensor | None = None  # the state that a linear layer began with, (B, H, D, E)
    ended: Tensor | None = None  # and the one that it returned

    @property
    def map(self) -> LayerMap:
        """The map of the call, which is in memory, also if other ranks have other rows of it."""
        m = self.layer.data().map
        assert m is not None
        return m

    @property
    def sizes(self) -> CallSizes:
        """Its numbers of queries and keys."""
        return CallSizes(*self.layer.shape[2:])


class WaitingCalls:
    """The calls of a forward pass that have not been judged yet.

    - `store`: where their layers are going to be kept.
    - `dtype`: the dtype in which q and k are stored; None leaves them as they are.
    - `values`: whether to keep the values too.
    - `overviews`: whether to keep an overview with each map.
    """

    def __init__(self, store: Store, dtype: torch.dtype | None, values: bool, overviews: bool) -> None:
        self.store, self.dtype, self.values, self.overviews = store, dtype, values, overviews
        self._calls: list[WaitingCall] = []
        self._nbytes = 0  # of the tensors that the capture does not keep

    @property
    def device(self) -> torch.device | None:
        """The device of the first call; None without any."""
        return self._calls[0].call.q.device if self._calls else None

    def add(
        self,
        slot: Slot,
        layer_id: LayerId,
        call: AttentionCall,
        changes: dict[str, Any],
        heads: list[int] | None,
        all_rows: bool,
    ) -> None:
        """Add a call with changes, whose tensors are copied now: the model may write to them later."""
        T = call.q.shape[2]
        rows = sampled_rows(T, T if all_rows else ROWS, call.q.device)
        if call.recurrence is not None:
            own = _own_tensors(call.recurrence, Recurrence._fields, rows)
            changes |= {"recurrence": call.recurrence._replace(**own)}
        call = call._replace(**_own_tensors(call, KEPT, rows), **changes)
        self._calls.append(WaitingCall(slot, layer_id, call, rows, heads))
        self._nbytes += call.v.nbytes + call.output.nbytes
        if not self.store.keeps_maps:
            self._nbytes += call.q.nbytes + call.k.nbytes

    def may_grow(self, is_first_layer: bool) -> bool:
        """Whether further calls may wait beside these; `is_first_layer` says that nothing is stored yet."""
        if not self.store.can_wait:
            return False  # a folder gets each layer as soon as it has run
        first = self._calls[0].call
        (B, H, T, _), S, device = first.q.shape, first.k.shape[2], first.q.device
        if len(self._calls) == 1 and is_first_layer:
            nbytes = first.q.nbytes + 2 * first.k.nbytes
            if not self.store.keeps_maps:
                nbytes = first.v.nbytes + summary_size(B, H, T, S)
            # The store refuses the first layer if not all will fit.
            if first.recurrence is not None or not self.store.has_room(nbytes, device):
                return False
        limit = WAITING_BYTES["cuda" if device.type == "cuda" else "cpu"]
        return self._nbytes <= (limit if self.store.keeps_maps else limit // SUMMARY_SHARE)

    def judge(self, is_new: Callable[[Slot], bool]) -> list[JudgedCall]:
        """Compare the calls with the model's own output, and forget them.

        `is_new` says whether a call is a layer of its own, for sure.
        """
        calls, self._calls, self._nbytes = self._calls, [], 0
        maps = [self._map(x.call) for x in calls]
        judged = [
            self._judged(x, m, evidence)
            for x, m, evidence in zip(calls, maps, _compare(calls, maps), strict=True)
        ]
        if self.store.keeps_maps:
            return judged
        # A call that may continue a layer is no layer, and a map that ranks share is not whole.
        layers = [x.layer for x in judged if x.layer.placement is None and is_new(x.slot)]
        for layer, summary in zip(layers, summarise_together([x.map for x in layers]), strict=True):
            layer.summary = summary
        return judged

    def _judged(self, waiting: WaitingCall, whole: LayerMap, evidence: Evidence) -> JudgedCall:
        """Return a call that has been compared, as a layer of the selected heads."""
        slot, layer_id, call, _, heads = waiting
        own, v = call.own_part(whole, call.v)
        m, indices, value_heads = select_heads(own, heads)
        placement = call.placement
        if placement is not None and not isinstance(value_heads, slice):
            placement = placement._replace(kv_heads=tuple(placement.kv_heads[i] for i in value_heads))
        layer = Layer(
            *layer_id,
            m,
            _with_call_facts(call, evidence),
            call.numbers(indices),
            v[:, value_heads] if self.values else None,
            placement=placement,
        )
        began = ended = None
        if call.recurrence is not None:
            states = (call.recurrence.initial_state, call.recurrence.final_state)
            began, ended = (x if x is None or heads is None else x[:, heads] for x in states)
        return JudgedCall(slot, layer, call.part, call.whole_mask is None, began, ended)

    def _map(self, call: AttentionCall) -> LayerMap:
        """Return a call's map, in the dtype in which it is stored."""
        # It is cast before the comparison, so that the stored map is certified.
        if call.recurrence is not None:
            linear = call.recurrence.attention_map(call.q, call.k, call.scale)
            return linear if self.dtype is None else linear.to(self.dtype)
        m = call.attention_map()
        if self.dtype is not None:
            m = cast_map(m, self.dtype)
        return m.with_overview() if self.overviews and call.whole_mask is None else m


def _own_tensors(x: AttentionCall | Recurrence, names: Sequence[str], rows: Tensor) -> dict[str, Any]:
    """Return copies of the tensors of a call, those of `COMPARED` at these rows only."""
    return {
        name: own_memory(at_rows(tensor, rows) if name in COMPARED else tensor)
        for name in names
        if isinstance(tensor := getattr(x, name), Tensor)
    }


def _compare(calls: Sequence[WaitingCall], maps: Sequence[LayerMap]) -> list[Evidence]:
    """Compare calls with the model's own output: those of softmax attention together, which is faster."""
    pairs = list(zip(calls, maps, strict=True))
    softmax = iter(judge([_comparison(x, m) for x, m in pairs if isinstance(m, AttentionMap)]))
    return [next(softmax) if isinstance(m, AttentionMap) else _examine(x, m) for x, m in pairs]


def _comparison(waiting: WaitingCall, m: AttentionMap) -> ComparedCall:
    """Return how a call that waits is compared with the model's own output."""
    call = waiting.call
    against = call.against if call.kept is None else KERNEL_OUTPUT
    options = (call.own_lse, call.softly_masked_rows, call.problem, against)
    return ComparedCall(m, call.v, waiting.rows, call.output, call.weights, *options)


def _examine(waiting: WaitingCall, m: LinearAttentionMap) -> Evidence:
    """Compare a call of a linear layer with the model's own output."""
    call = waiting.call
    names = ("initial_state", "final_state", "gate", "convolution")
    parts = {name: getattr(call.recurrence, name) for name in names}
    return examine_linear(m, call.v, call.output, **parts, problem=call.problem, rows=waiting.rows)


def _with_call_facts(call: AttentionCall, evidence: Evidence) -> Evidence:
    """Return the evidence with what is known of the call beside its numbers."""
    facts: dict[str, Any] = {}
    if call.unplaced is not None:
        facts["unplaced"] = call.unplaced
    if (mask := call.whole_mask) is not None:
        facts |= {"mask": str(mask), "window": mask.window_size()}
    if call.replaced is not None:
        heads = call.replaced.any(1).nonzero().flatten().tolist()
        facts["replaced_heads"] = tuple(call.numbers(heads))
    return dataclasses.replace(evidence, **facts) if facts else evidence
