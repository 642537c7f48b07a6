"""Where two captures of one text part: the first layer that differs by more than rounding, and what differs.

Two implementations, dtypes, engines or numbers of ranks compute the same attention up to rounding. This file
compares what each layer's attention was given: queries, keys, mask, scale, soft cap, sink logits and values,
and whether its output is that of these inputs, which the certificate says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.recorder.map_preparation import select_heads
from regard.spans.text_maps import text_positions
from regard.support.cell_output import PrintedOutput

if TYPE_CHECKING:
    from regard.comparison.compared_text import Alignment, ComparedText
    from regard.recorder.layer import Layer

# How far tensors of equal runs may be apart, relative to their norm: the error of a projection and of the
# norm before it, many roundings of the dtype. Half precision has few digits, and the factor is smaller.
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
GROWTH = 8.0  # how many times larger than in any earlier layer an error may be: rounding grows with depth
SETTING = 1e-5  # relative: a scale or a soft cap may have been rounded to float32
TILE_NUMBERS = 1 << 22  # entries of a mask that are compared at a time
INPUTS = ("q", "k", "values")
ADVICE = {
    "mask": "one sees keys that the other does not",
    "bias": "the numbers that are added to the scores differ",
    "scale": "the factor of the scores differs",
    "soft cap": "one caps its scores, or at another height",
    "sinks": "one has sink logits that the other lacks, or others",
    "output": "the inputs agree, and one output is not that of its inputs",
}


class PartDifference(NamedTuple):
    """How far one part of a layer's attention is apart."""

    layer: int | str
    part: str
    """One of "q", "k", "values", "mask", "bias", "scale", "soft cap", "sinks" and "output"."""
    error: float
    """Relative to the norm of a tensor, or to a setting; the share of a mask's entries; for an output, how
    many times its tolerance it is off its own inputs."""
    limit: float
    """What rounding may come to, in these dtypes and at this depth."""

    @property
    def parts(self) -> bool:
        """Whether it is more than rounding; NaN is."""
        return not self.error <= self.limit


@dataclass(frozen=True)
class Parting(PrintedOutput):
    """The first layer in which two captures part, and what parts there: see `Comparison.parting`."""

    layer: int | str | None
    """The key of the first layer that parts; None if there is rounding only."""
    parts: tuple[str, ...]
    """What parts there: of "q", "k", "values", "mask", "bias", "scale", "soft cap", "sinks", "output"."""
    differences: tuple[PartDifference, ...]
    """Every part of every layer up to and with that one, in the order in which the model computes."""
    dtypes: tuple[str, str]
    """The dtypes of the queries of either capture."""
    without_values: bool = False
    """Whether a capture has no values (`values=True`), so that these are not compared."""
    left_out: tuple[int | str, ...] = ()
    """The layers that were not compared: only one capture has them, or their rows may be no tokens."""
    also_left_out: tuple[str, ...] = ()
    """What else was not compared, in words: heads that only one capture has, and outputs of which nothing is
    known, since neither capture certifies them."""

    @property
    def rounding_only(self) -> bool:
        """Whether what was compared agrees up to rounding; `left_out` and `also_left_out` have the rest."""
        return self.layer is None

    def __str__(self) -> str:
        dtypes = " and ".join(dict.fromkeys(self.dtypes))
        note = "; values are not compared: capture with values=True" if self.without_values else ""
        left_out = [f"layer {', '.join(map(str, self.left_out))}"] if self.left_out else []
        if left_out := [*left_out, *self.also_left_out]:
            note += f"; not compared: {', '.join(left_out)}"
        if self.layer is None:
            errors = [difference.error for difference in self.differences if difference.part in INPUTS]
            layers = len({difference.layer for difference in self.differences})
            of = f" of {layers + len(self.left_out)}" if self.left_out else ""
            agree = "layer agrees" if layers == 1 and not of else "layers agree"
            error = max(errors, default=0.0)
            return f"rounding only: {layers}{of} {agree} within {error:.1e}, in {dtypes}{note}"
        lines = [f"layer {self.layer} parts: {', '.join(self.parts)} ({dtypes}){note}"]
        lines.append("  " + self._explain())
        lines += [
            f"  {x.part:8} off by {x.error:.1e}, rounding is up to {x.limit:.1e}"
            for x in self.differences
            if x.layer == self.layer and x.parts
        ]
        return "\n".join(lines)

    def _explain(self) -> str:
        """What the parts that part have in common."""
        inputs = [part for part in INPUTS if part in self.parts]
        if settings := [part for part in self.parts if part not in INPUTS]:
            return "; ".join(f"{part}: {ADVICE[part]}" for part in settings)
        if len(inputs) == 3 or (self.without_values and len(inputs) == 2):
            is_first = self.differences[0].layer == self.layer
            before = (
                "the embedding or the first norm" if is_first else "what is between the last layer and it"
            )
            return f"everything that this attention reads differs: {before} parts"
        if inputs == ["q", "k"]:
            return "the values agree: rotary positions, or a norm of queries and keys"
        return f"the rest agrees: the projection of {inputs[0]}, or what is done to it before the scores"


def find_parting(
    a: ComparedText,
    b: ComparedText,
    keys: list[int | str],
    alignments: dict[str, tuple[Alignment, Alignment]],
) -> Parting:
    """Compare the layers of two texts one after the other, up to the first that parts."""
    differences: list[PartDifference] = []
    dtypes, without_values = ("", ""), False
    also_left_out: list[str] = []
    parts: tuple[str, ...] = ()
    largest = 0.0  # error of an input so far
    for key in sorted(keys, key=lambda key: _order(a.seen.layer(key))):
        layers = a.seen.layer(key), b.seen.layer(key)
        rows, columns = alignments[layers[0].stack]
        sides = [
            ComparedInputs(text, layer, rows[side], columns[side], layers[1 - side].heads)
            for side, (text, layer) in enumerate(zip((a, b), layers, strict=True))
        ]
        dtypes = (str(sides[0].dtype).removeprefix("torch."), str(sides[1].dtype).removeprefix("torch."))
        without_values = without_values or any(side.values is None for side in sides)
        if heads := sorted(set(layers[0].heads) ^ set(layers[1].heads)):
            also_left_out.append(f"head {', '.join(map(str, heads))} of layer {key}")
        if min(side.tolerance_used for side in sides) > 1:
            also_left_out.append(f"the output of layer {key}, which neither capture certifies")
        limit = max(GROWTH * largest, *(ROUNDING.get(side.dtype, 2e-5) for side in sides))
        found = list(_compare_layers(key, sides[0], sides[1], limit))
        differences += found
        if parts := tuple(difference.part for difference in found if difference.parts):
            break
        largest = max([largest, *(difference.error for difference in found if difference.part in INPUTS)])
    layer = differences[-1].layer if parts else None
    return Parting(
        layer, parts, tuple(differences), dtypes, without_values, also_left_out=tuple(also_left_out)
    )


def _order(layer: Layer) -> tuple[bool, int, bool]:
    """When a model computes a layer: its encoder, then each layer of the decoder and its cross-attention."""
    return layer.stack in ("decoder", "cross"), layer.number, layer.stack == "cross"


class ComparedInputs:
    """What one layer's attention was given, at the shared tokens of one text, by the heads that are shared.

    `others` are the heads of the other capture.
    """

    def __init__(
        self, text: ComparedText, layer: Layer, rows: Tensor, columns: Tensor, others: tuple[int, ...]
    ) -> None:
        shared = [i for i, head in enumerate(layer.heads) if head in others]
        m, _, kv_heads = select_heads(text.map(layer, (rows, columns)), shared)
        assert isinstance(m, AttentionMap)
        self.map, self.dtype = m, m.q.dtype
        self.q, self.k = m.q[0], _by_query_head(m.k[0], len(shared))  # (H, T, D) and (H, S, D)
        queries, keys = text_positions(text.seen, layer).extents(text.batch, *layer.shape[2:])
        self.values: Tensor | None = None  # (H, S, E)
        if layer.values is not None:
            values = layer.values[text.batch, :, keys].to(m.device)
            self.values = _by_query_head(values[kv_heads][:, columns.to(m.device)], len(shared))
        padding = _visible_padding(text, layer, queries, keys)
        # How many keys of the padding each query sees, (H, T); None: there is none.
        self.padding = None if padding is None else padding[:, rows.to(padding.device)][shared]
        evidence = layer.evidence
        used = 0.0 if evidence.certified else max(evidence.tolerance_used, 2.0)
        # Of the certificate; above 1, the output is not that of these inputs.
        self.tolerance_used = math.inf if evidence.problem is not None else used
        # How much of the tolerance eager code may use in this dtype; 1 in float32.
        self.own_rounding = _eager_rounding(self.dtype, evidence.scores)


def _visible_padding(text: ComparedText, layer: Layer, queries: slice, keys: slice) -> Tensor | None:
    """Return how many keys before and after a text its queries see, (H, T), or None if there are none."""
    _, H, T, S = layer.shape
    if keys == slice(0, S):
        return None
    m = layer.softmax_map("comparison").select(slice(text.batch, text.batch + 1), slice(0, H))
    rows = range(T)[queries]
    height = max(1, TILE_NUMBERS // max(1, S * H))
    counts = [
        torch.cat(
            [
                m.mask.tile(rows[start : start + height], outside, m.matrix).expand(1, H, -1, -1)[0]
                for outside in (range(keys.start), range(keys.stop, S))
            ],
            -1,
        ).sum(-1)
        for start in range(0, len(rows), height)
    ]
    return torch.cat(counts, 1) if counts else None


def _eager_rounding(dtype: torch.dtype, largest_score: float) -> float:
    """How many of the certificate's tolerances the rounding of eager code may come to."""
    if dtype == torch.float64:  # Llama's eager attention takes its softmax in float32, whatever the dtype
        return torch.finfo(torch.float32).eps / torch.finfo(dtype).eps
    # It also rounds every score to its dtype, before the softmax: the larger a score, the more.
    return 1.0 if dtype == torch.float32 else max(1.0, largest_score)


def _by_query_head(x: Tensor, H: int) -> Tensor:
    """Return keys or values (G, S, D) as (H, S, D), the heads of a group beside each other."""
    return x.repeat_interleave(H // x.shape[0], 0)


def _compare_layers(
    key: int | str, a: ComparedInputs, b: ComparedInputs, limit: float
) -> Iterator[PartDifference]:
    """Yield how far each part of two layers is apart."""
    scales = a.map.scale, b.map.scale
    q_error = _relative(a.q, b.q)
    # An engine may fold the scale into its queries: then both differ, and their product does not.
    folded = _relative(a.q.double() * scales[0], b.q.double() * scales[1])
    is_folded = folded < q_error
    yield PartDifference(key, "q", min(q_error, folded), limit)
    yield PartDifference(key, "k", _relative(a.k, b.k), limit)
    if a.values is not None and b.values is not None:
        yield PartDifference(key, "values", _relative(a.values, b.values), limit)
    yield PartDifference(key, "scale", 0.0 if is_folded else _setting(*scales), SETTING)
    yield PartDifference(key, "soft cap", _setting(a.map.softcap, b.map.softcap), SETTING)
    yield PartDifference(key, "sinks", _sinks(a, b), limit)
    hidden, bias = _compare_masks(a, b)
    yield PartDifference(key, "mask", hidden, 0.0)
    yield PartDifference(key, "bias", bias, limit)
    # An output counts only if one capture is certified: of two that are not, nothing is known.
    used, own = max(a.tolerance_used, b.tolerance_used), max(a.own_rounding, b.own_rounding)
    yield PartDifference(key, "output", used if min(a.tolerance_used, b.tolerance_used) <= 1 else 0.0, own)


def _relative(a: Tensor, b: Tensor) -> float:
    """Return how far two tensors are apart, relative to their norm: all of them, or one row.

    A row's difference counts an eighth of its share, since rounding is larger in some rows than in others.
    Without it one wrong token in 300 passed for bfloat16's rounding.
    """
    a, b = a.double(), b.double().to(a.device)
    if a.shape[-1] != b.shape[-1]:  # kernels widen heads by zeros
        width = max(a.shape[-1], b.shape[-1])
        a, b = (torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (a, b))
    norm = float(torch.maximum(a.norm(), b.norm()))
    if not norm:
        return 0.0
    difference = a - b
    mean = norm / math.sqrt(max(1, a[..., 0].numel()))  # the norm of a row
    rows = torch.maximum(a.norm(dim=-1), b.norm(dim=-1)).clamp(min=mean)
    worst = float((difference.norm(dim=-1) / rows).max())  # NaN, if there is one
    return max(float(difference.norm()) / norm, worst / GROWTH)


def _setting(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return 0.0 if a == b else math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-300)


def _sinks(a: ComparedInputs, b: ComparedInputs) -> float:
    if a.map.sinks is None or b.map.sinks is None:
        return 0.0 if a.map.sinks is b.map.sinks else math.inf
    return _relative(a.map.sinks, b.map.sinks)


def _compare_masks(a: ComparedInputs, b: ComparedInputs) -> tuple[float, float]:
    """Return the share of entries that only one of two masks hides, and how far their biases are apart."""
    _, H, T, S = a.map.matrix
    height = max(1, TILE_NUMBERS // max(1, S * H))
    different = total = 0
    off = size = 0.0
    for start in range(0, T, height):
        rows = range(start, min(start + height, T))
        visible, biases = zip(*(_mask_rows(side, rows) for side in (a, b)), strict=True)
        other = visible[1].to(visible[0].device)
        # Implementations differ in what a query without a visible key gets, uniform weights or zeros.
        alive = visible[0].any(-1, keepdim=True) & other.any(-1, keepdim=True)
        different += int(((visible[0] != other) & alive).sum())
        # Padding is no part of the text that is compared, so a run that sees it would be named a layer late.
        padding = [x.padding[:, rows.start : rows.stop] for x in (a, b) if x.padding is not None]
        if padding:
            seen = padding[0] if len(padding) == 1 else padding[0] - padding[1].to(padding[0].device)
            different += int((seen.to(alive.device).abs() * alive[..., 0]).sum())
        total += visible[0].numel()
        both = visible[0] & other
        one, two = (x.double().to(both.device).masked_fill(~both, 0.0) for x in biases)
        off += float((one - two).square().sum())
        size = size + float(torch.maximum(one.abs(), two.abs()).square().sum())
    return different / max(1, total), math.sqrt(off / size) if size else 0.0


def _mask_rows(side: ComparedInputs, rows: range) -> tuple[Tensor, Tensor]:
    """Return what some queries see and the numbers added there, both (H, rows, S)."""
    m = side.map
    _, H, _, S = shape = m.matrix
    visible = m.mask.tile(rows, range(S), shape).expand(1, H, len(rows), S)[0]
    bias = m.mask.bias(rows, range(S), shape)
    bias = torch.zeros((), device=m.device) if bias is None else bias
    return visible, bias.expand(1, H, len(rows), S)[0]
