"""`patch`: gives a head the output, or the attention pattern, that it had in another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.interventions.edit import (
    PATCHED,
    CallPlace,
    Edit,
    Positions,
    PositionSet,
    check_no_dropout,
    head_mask,
    replace_weights,
)
from regard.interventions.head_selection import Heads, Layer, select_heads
from regard.maps import AttentionMap
from regard.recorder.attention_call import AttentionCall
from regard.recorder.capture_result import Capture


def patch(
    layer: Layer | None = None,
    head: int | Sequence[int] | None = None,
    source: Capture | None = None,
    what: Literal["output", "pattern"] = "output",
    *,
    heads: Heads | None = None,
    positions: Positions | None = None,
) -> Edit:
    """An edit that gives a head what it had in another run of the same length: activation patching.

    - `layer`: the layer's number, or its key such as "decoder.3" where the model has several stacks.
    - `head`: the head's number, several, or None for all heads of the layer.
    - `source`: the capture of the other run; for `what="output"` one made with `values=True`.
    - `what`: "output" for the head's output before the output projection; "pattern" for its attention
      weights, which are then applied to the values of this run.
    - `heads`: instead of layer and head, as in `regard.ablate`.
    - `positions`: the queries at which the head is patched; None for all.
    """
    if not isinstance(source, Capture):
        got = "nothing" if source is None else type(source).__name__
        raise ValueError(f"source: expected the capture of another run, got {got}")
    if what not in ("output", "pattern"):
        raise ValueError(f"what: expected 'output' or 'pattern', got {what!r}")
    at = None if positions is None else PositionSet.of("positions", positions)
    return ActivationPatch(select_heads(layer, head, heads), source, what, positions=at)


@dataclass(frozen=True)
class ActivationPatch(Edit):
    """Gives heads the output or the pattern of another run; see `patch`."""

    source: Capture
    what: Literal["output", "pattern"]

    @property
    def rank(self) -> int:  # type: ignore[override]
        return 0 if self.what == "pattern" else 2

    def new_output(self, call: AttentionCall, heads: list[int], place: CallPlace) -> Tensor:
        numbers = call.numbers(heads)
        maps = self._source_maps(call, numbers, place)  # a map (B, 1, T, S) for each head
        layer = self.source.layer(place.layer)
        values = layer.values
        if values is None:
            raise ValueError(
                "source: expected a capture with values for what='output': "
                "write regard.capture(model, …, values=True)"
            )
        group = layer.shape[1] // values.shape[1]
        kv_heads = [layer.heads.index(head) // group for head in numbers]
        return _multiply(maps, values.to(maps[0].device), kv_heads)

    def with_weights(
        self, call: AttentionCall, heads: list[int], place: CallPlace, rows: Tensor | None
    ) -> AttentionCall:
        maps = self._source_maps(call, call.numbers(heads), place)
        check_no_dropout(call, place, "a pattern is patched")
        group = call.q.shape[1] // call.k.shape[1]
        output = _multiply(maps, call.v, [head // group for head in heads])
        if rows is not None:
            output = torch.where(rows[:, None], output.to(call.output), call.output[:, heads])
        mask = _joint_mask(call, heads, maps[0].mask)
        # At some rows only, a head would need the queries and keys of both runs.
        if rows is not None or mask is None:
            return replace_weights(call, heads, output, None)._replace(problem=call.problem or PATCHED)
        edited = replace_weights(call, heads, output, lambda: torch.cat([m.to_dense() for m in maps], 1))
        return _with_patterns(edited, heads, maps)._replace(mask=mask)

    def _source_maps(self, call: AttentionCall, heads: list[int], place: CallPlace) -> list[AttentionMap]:
        """Return the map (B, 1, T, S) of each head in the other run, for the size of this call."""
        try:
            layer = self.source.layer(place.layer)
        except KeyError as error:
            raise ValueError(f"source: {error.args[0]}") from None
        if missing := [head for head in heads if head not in layer.heads]:
            raise ValueError(
                f"source: expected head {missing[0]} of layer {place.layer} in the capture, "
                f"which has {list(layer.heads)}"
            )
        evidence = layer.evidence
        lost = [head for head in heads if self.what == "output" and head in evidence.replaced_heads]
        if lost or evidence.problem == PATCHED:
            raise ValueError(
                f"source: expected a run that shows what {self.selection} did, but an edit replaced the "
                f"{self.what} in that run, which the capture does not hold: capture it without that edit"
            )
        (B, _, T, D), S = call.q.shape, call.k.shape[2]
        source_B, _, source_T, source_S = layer.shape
        place.check()
        if (source_T, source_S) != (T, S) or source_B not in (1, B) or (place.T, place.S) != (T, S):
            raise ValueError(
                f"source: expected a run of the same length, {B}×{T}×{S} here, got {source_B}×{source_T}×"
                f"{source_S}: patch a single forward pass of two texts with equally many tokens"
            )
        m = layer.softmax_map("patching")
        if (m.q.shape[-1], m.scale, m.softcap) != (D, call.scale, call.softcap):
            raise ValueError(
                f"source: expected a run of this model, but its layer {place.layer} has another width, "
                "scale or soft cap"
            )
        m = m.to(call.q.device)
        numbers = [layer.heads.index(head) for head in heads]
        maps: list[AttentionMap] = [m[:, i : i + 1] for i in numbers]
        return maps

    def __str__(self) -> str:
        where = "" if self.positions is None else f" at {self.positions}"
        return f"{self.what} of {self.selection} from another run{where}"


def _multiply(maps: list[AttentionMap], v: Tensor, kv_heads: list[int]) -> Tensor:
    """Return maps (B, 1, T, S) times the values that they read of v (B, G, S, E), as (B, heads, T, E)."""
    return torch.cat([m @ v[:, i : i + 1] for m, i in zip(maps, kv_heads, strict=True)], 1)


def _with_patterns(call: AttentionCall, heads: list[int], maps: list[AttentionMap]) -> AttentionCall:
    """Return a call whose map shows the patterns that were patched."""
    call = call.with_lse()
    assert call.lse is not None
    group = call.q.shape[1] // call.k.shape[1]
    # The heads of a group have keys of their own once one of them is patched.
    k, v = (x.detach().repeat_interleave(group, 1) for x in (call.k, call.v))
    q, lse = call.q.detach().clone(), call.lse.clone()
    for head, m in zip(heads, maps, strict=True):
        q[:, head], k[:, head], lse[:, head] = m.q[:, 0].to(q), m.k[:, 0].to(k), m.lse[:, 0].to(lse)
    return call._replace(q=q, k=k, v=v, lse=lse)


def _joint_mask(call: AttentionCall, heads: list[int], source: Mask) -> Mask | None:
    """Return the mask that is the source's for some heads and the call's own for the others, or None."""
    if source == call.mask:
        return call.mask
    # Masks that add to the scores cannot be joined by `|` or negated.
    if source.biased or call.mask.biased:
        return None
    chosen = head_mask(call, heads)
    return (call.mask & ~chosen) | (source & chosen)
