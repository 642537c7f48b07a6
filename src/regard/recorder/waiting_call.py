"""Calls that wait until their forward pass ends, and are then compared with the model together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder.attention_call import AttentionCall, Recurrence
from regard.recorder.certificates.certificate import KERNEL_OUTPUT, Evidence
from regard.recorder.certificates.examination import ComparedCall, at_rows, judge
from regard.recorder.certificates.linear_certificate import examine_linear
from regard.recorder.layer import LayerId, LayerMap
from regard.recorder.map_preparation import own_memory
from regard.recorder.receiver import Slot

WAITING_BYTES = 1 << 28  # what calls that wait to be judged may hold beside the capture itself
GPU_WAITING_BYTES = 1 << 30
SUMMARY_WAITING_BYTES = 1 << 26  # the same where a capture keeps summaries only, to take little memory
GPU_SUMMARY_WAITING_BYTES = 1 << 28


class WaitingCall(NamedTuple):
    """An attention call that is judged when the forward pass ends, in memory of its own."""

    slot: Slot
    layer_id: LayerId
    call: AttentionCall  # whose output, weights and gate have the rows that are compared
    rows: Tensor
    heads: list[int] | None  # the selected ones that this rank has; None for all


KEPT = ("q", "k", "v", "lse", "sinks", "output", "weights")
"""The tensors that are kept of a call until it is judged, and then in part of its layer."""
COMPARED = ("output", "weights", "gate")
"""Those of which only the rows that are compared are kept."""


def own_tensors(x: AttentionCall | Recurrence, names: Sequence[str], rows: Tensor) -> dict[str, Any]:
    """Return copies of the tensors of a call, those of `COMPARED` at these rows only."""
    tensors = {name: tensor for name in names if isinstance(tensor := getattr(x, name), Tensor)}
    return {
        name: own_memory(at_rows(tensor, rows) if name in COMPARED else tensor)
        for name, tensor in tensors.items()
    }


def compare_calls(waiting: Sequence[WaitingCall], maps: Sequence[LayerMap]) -> list[Evidence]:
    """Compare calls with the model's own output: those of softmax attention together, which is faster."""
    pairs = list(zip(waiting, maps, strict=True))
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


def with_call_facts(call: AttentionCall, evidence: Evidence) -> Evidence:
    """Return the evidence with what is known of the call beside its numbers."""
    if call.unplaced is not None:
        evidence = dataclasses.replace(evidence, unplaced=call.unplaced)
    if call.whole_mask is not None:
        mask = call.whole_mask
        evidence = dataclasses.replace(evidence, mask=str(mask), window=mask.window_size())
    if call.replaced is not None:
        heads = call.replaced.any(1).nonzero().flatten().tolist()
        evidence = dataclasses.replace(evidence, replaced_heads=tuple(call.numbers(heads)))
    return evidence
