"""Calls that wait until their forward pass ends, and are then compared with the model together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder.attention_call import AttentionCall, Recurrence
from regard.recorder.call_receiver import Slot
from regard.recorder.certificates.certificate import KERNEL_OUTPUT, ROWS, Evidence, sampled_rows
from regard.recorder.certificates.linear_certificate import examine_linear
from regard.recorder.certificates.output_comparison import ComparedCall, at_rows, judge
from regard.recorder.layer import LayerId, LayerMap
from regard.recorder.map_preparation import SelectedHeads, cast_map, own_memory, select_heads
from regard.recorder.storage.stores import Store
from regard.recorder.summary import LayerSummary, summarise_together, summary_size

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
    """A call that has been compared with the model's own output."""

    waiting: WaitingCall
    selected: SelectedHeads
    v: Tensor  # of all heads
    evidence: Evidence
    summary: LayerSummary | None


class WaitingCalls:
    """The calls of a forward pass that have not been judged yet.

    - `store`: where their layers are going to be kept.
    - `dtype`: the dtype in which q and k are stored; None leaves them as they are.
    - `overviews`: whether to keep an overview with each map.
    """

    def __init__(self, store: Store, dtype: torch.dtype | None, overviews: bool) -> None:
        self.store, self.dtype, self.overviews = store, dtype, overviews
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

    def amend(self, slot: Slot, **reasons: Any) -> None:
        """Add reasons to a call, where it has none."""
        for i, x in enumerate(self._calls):
            if x.slot == slot:
                known = {name: getattr(x.call, name) or reason for name, reason in reasons.items()}
                self._calls[i] = x._replace(call=x.call._replace(**known))

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
        evidence = _compare(calls, maps)
        parts: list[tuple[SelectedHeads, Tensor]] = []
        for x, whole in zip(calls, maps, strict=True):
            own, v = x.call.own_part(whole, x.call.v)
            parts.append((select_heads(own, x.heads), v))
        # A call that may continue a layer is no layer, and a map that ranks share is not whole.
        whole_layers = [
            i
            for i, x in enumerate(calls)
            if not self.store.keeps_maps and x.call.placement is None and is_new(x.slot)
        ]
        summaries = summarise_together([parts[i][0].map for i in whole_layers])
        summary = dict(zip(whole_layers, summaries, strict=True))
        return [
            JudgedCall(x, *part, _with_call_facts(x.call, own), summary.get(i))
            for i, (x, part, own) in enumerate(zip(calls, parts, evidence, strict=True))
        ]

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
