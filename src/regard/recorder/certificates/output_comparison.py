"""Compares maps with the output of the model's own attention, as many calls at once as can be.

The calls of a forward pass are judged together: those of equal sizes are compared as one batch, and no number
is read before all comparisons are queued. A GPU waits for every question about its numbers, and small
operations cost more than what they compute. What the numbers mean is said by `certificate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap
from regard.maps.tile_passes.large_heads import has_large_lse, no_large_heads
from regard.recorder.attention_call import AttentionCall
from regard.recorder.certificates.certificate import OWN_OUTPUT, ROWS, Evidence, sampled_rows
from regard.recorder.certificates.row_products import multiply_rows, visible_keys
from regard.recorder.summary import batch_kind, join_maps

# Bytes of weights of the calls that are compared as one batch: the copies that join longer ones would cost as
# much as judging them one by one.
JOINED_BYTES = {"cpu": 1 << 26, "cuda": 1 << 27}
WEIGHT_BYTES = 1 << 26  # of the model's own weights that are compared at a time
ROUNDING_UNITS = {torch.float32: 256, torch.float64: 1024}
"""By how many units in the last place a weight, or the sum of a row, may be off. Large scores are
recomputed in float64, where a float32 map is exact; a float64 map has nothing finer to be computed in."""
DISTINCT = 8  # values must differ by this many tolerances for the output to determine the weights
TELLING_ROWS = 8  # rows of a head of which it is asked whether they determine the weights
SIMILAR_VALUES = "its values are so similar that its output does not determine its weights"


class ComparedCall(NamedTuple):
    """A map (B, H, T, S), and what the model's own attention gave at some of its rows."""

    m: AttentionMap
    v: Tensor  # (B, G, S, E)
    rows: Tensor  # the rows that are compared, on the device of the map
    output: Tensor  # (B, H, rows, E)
    weights: Tensor | None = None  # (B, H, rows, S), if the model's own implementation returns them
    own_lse: bool = False  # whether the map's lse came from the model's own kernel
    softly_masked_rows: bool = False
    """Whether in some rows finite biases mask every key, so that the model's output there has to be zero or
    the mean of the values."""
    problem: str | None = None  # a reason why the layer cannot be certified, if one is known
    against: str = OWN_OUTPUT  # a name for the output

    @property
    def kind(self) -> tuple[object, ...] | None:
        """What calls must have in common to be compared as one batch; None if this is compared alone."""
        kind = batch_kind(self.m)
        if kind is None or self.weights is not None or self.softly_masked_rows:
            return None
        tensors = (self.v.shape, self.v.dtype, self.output.shape, self.output.dtype)
        return (*kind, *tensors, self.own_lse, self.problem is None)


def examine(
    m: AttentionMap,
    v: Tensor,
    output: Tensor,
    *,
    weights: Tensor | None = None,
    max_rows: int | None = ROWS,
    **options: Any,
) -> Evidence:
    """Compare a map (B, H, T, S) and its values v (B, G, S, E) with the model's output (B, H, T, E).

    `weights` are (B, H, T, S), and `max_rows` is the number of rows to compare, or None for all of them. The
    `options` are further fields of a `ComparedCall`.
    """
    rows = sampled_rows(m.matrix[2], m.matrix[2] if max_rows is None else max_rows, m.device)
    output, own = at_rows(output, rows), None if weights is None else at_rows(weights, rows)
    (evidence,) = judge([ComparedCall(m, v, rows, output, own, **options)])
    return evidence


@torch.no_grad()
def is_certified(call: AttentionCall) -> bool:
    """Whether a call's weights times its values are its output."""
    v, output, soft = call.v.detach(), call.output.detach(), call.softly_masked_rows
    return examine(call.attention_map(), v, output, weights=call.weights, softly_masked_rows=soft).certified


def at_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of x (B, H, T, …)."""
    return x if len(rows) == x.shape[2] else x.index_select(2, rows.to(x.device))


def judge(comparisons: Sequence[ComparedCall]) -> list[Evidence]:
    """Return the evidence of comparisons, which are made in as few operations as can be."""
    alike: dict[object, list[int]] = {}
    for i, comparison in enumerate(comparisons):
        alike.setdefault(comparison.kind or i, []).append(i)
    batches: list[list[int]] = []
    for numbers in alike.values():
        size = _batch_size(comparisons[numbers[0]])
        batches += [numbers[first : first + size] for first in range(0, len(numbers), size)]
    measured = [_measure([comparisons[i] for i in batch], quick=True) for batch in batches]
    evidence: dict[int, Evidence] = {}
    for batch, of_batch in zip(batches, map(_read, measured), strict=True):
        facts = _facts(comparisons[batch[0]])
        for i, own in zip(batch, of_batch, strict=True):
            if not own.is_clear:
                (own,) = _read(_measure([comparisons[i]], quick=False))
            evidence[i] = _evidence(comparisons[i], own, facts)
    return [evidence[i] for i in range(len(comparisons))]


def _batch_size(c: ComparedCall) -> int:
    """How many calls like this one are compared as one batch."""
    B, H, _, S = c.m.matrix
    own = max(1, B * H * len(c.rows) * S * c.m.dtype.itemsize)
    return int(max(1, JOINED_BYTES["cuda" if c.m.device.type == "cuda" else "cpu"] // own))


class _Measured(NamedTuple):
    """The numbers of one comparison."""

    ratio: float  # the largest ratio of a difference to its tolerance
    tolerance: float  # at that entry
    sums: float  # the largest |sum of a row − 1|
    empty: float  # rows without a visible key
    unclear: float  # whether the values of some head are too similar
    score: float  # the largest |lse|
    weights: float  # the largest difference from the model's own weights
    doubt: float  # whether values may be similar or scores too large, which a quick comparison leaves open

    @property
    def is_clear(self) -> bool:
        """Whether a quick comparison is enough.

        A product that is not finite gives no finite ratio; where no row sees a key, NaN in padding shows in
        the tolerance alone (Nemotron ASR).
        """
        return math.isfinite(self.ratio) and math.isfinite(self.tolerance) and not self.doubt


def _read(measured: Tensor) -> list[_Measured]:
    """Read the numbers of comparisons (comparisons, 8); a GPU has to have made them."""
    return [_Measured(*numbers) for numbers in measured.tolist()]


def _rounding(c: ComparedCall) -> tuple[float, float, float]:
    """Return what rounding may change: a weight, a number as stored, and both together in a row.

    Relative to a row's own values, kernels in half precision round the weights and the output, and eager
    attention its scores too (Gemma 2, whose scores of 8 are off by 1.4 units then); queries and keys may be
    stored in another dtype than the output's.
    """
    stored_eps = max(torch.finfo(c.output.dtype).eps, torch.finfo(c.m.stored_dtype).eps)
    units = ROUNDING_UNITS[c.m.dtype] * torch.finfo(c.m.dtype).eps
    return units, stored_eps, 4.0 * (stored_eps + units)


@torch.no_grad()
def _measure(batch: list[ComparedCall], *, quick: bool) -> Tensor:
    """Return the numbers of comparisons that are alike, (comparisons, 8), as `_Measured` names them.

    `quick` expects what holds for nearly all calls: that all products are finite, that values differ and, on
    a GPU in half precision, that no head has large scores. Nothing then waits for a GPU.
    """
    n, first = len(batch), batch[0]
    m, v, output = first.m, first.v, first.output
    if n > 1:
        m = join_maps([c.m for c in batch])
        v, output = torch.cat([c.v for c in batch]), torch.cat([c.output for c in batch])
    B, H, T, S = m.matrix
    R, zero = len(first.rows), v.new_zeros(n, dtype=m.dtype)
    doubt: Tensor | None = None
    if 0 in (B, H, T, S):
        return v.new_zeros(n, 8, dtype=m.dtype)
    half_on_gpu = m.device.type == "cuda" and m.stored_dtype != torch.float32
    if quick and half_on_gpu and m.softcap is None:
        large = has_large_lse(m.lse, m.mask, S, m.first_position, half_precision=True)
        doubt, m = large.reshape(n, -1).any(1), m._with(precise=no_large_heads(B, H))
    lse = at_rows(m.lse, first.rows)  # (B, H, rows)
    # NaN is not the mark of a row without a visible key, and is not to be left out like one.
    hidden = lse == -torch.inf
    # Asking takes less time than filling, but on a GPU it would wait.
    any_hidden = m.device.type == "cuda" or bool(hidden.any())
    _, _, rounding = _rounding(first)

    # The output that the map's weights give, against the model's own. Every error of a kernel is relative to
    # a weight or to the sum: those of the scores and of the log-sum-exp, the rounding of the weights before
    # the product, its accumulation. So a row may be off by its own Σ w |v|, and a large value that a row
    # hardly uses does not loosen it.
    product, sizes, row_sum = multiply_rows(m, first.rows, v, quick=quick)
    v = v if quick else v.nan_to_num(0.0, 0.0, 0.0)  # padding may hold anything
    # A weight below the smallest number of its dtype is lost, whatever its value.
    smallest = max(smallest_error(output.dtype), smallest_error(m.stored_dtype))
    size_of_values = v.abs().sum(2, keepdim=True, dtype=m.dtype)
    lost = _for_queries(smallest * (1.0 + size_of_values), H)  # (B, H, 1, E)
    tolerance = torch.add(lost, sizes, alpha=rounding)
    model_output = output.to(m.dtype)
    ratio = product.sub_(model_output).abs_().div_(tolerance)
    if first.softly_masked_rows:
        # In such rows Transformers' eager attention gives the mean of the values, and PyTorch's kernels give
        # zeros.
        mean = _for_queries(v.to(m.dtype).mean(2, keepdim=True), H)  # (B, H, 1, E)
        room = _for_queries(size_of_values * (rounding / S), H) + lost
        off = torch.minimum(model_output.abs(), (model_output - mean).abs()).nan_to_num(0.0)
        ratio = torch.where(hidden[..., None], off / room, ratio)
        tolerance = torch.where(hidden[..., None], room, tolerance)
    elif any_hidden:
        # What a kernel returns for a row without a visible key is its own business: zeros, NaN or a mean.
        ratio.masked_fill_(hidden[..., None], 0.0)
    worst, at_worst = zero, zero
    if ratio.numel():
        worst, place = ratio.reshape(n, -1).max(1, keepdim=True)  # NaN if there is one
        worst, at_worst = worst[:, 0], tolerance.reshape(n, -1).gather(1, place)[:, 0]

    # The sums of the rows, with the weight of the sink logit.
    if m.sinks is not None:
        row_sum = row_sum + (m.sinks.to(lse.dtype).view(1, -1, 1) - lse).exp()
    sum_error, score, empty_rows = (row_sum - 1.0).abs_(), lse.abs(), zero
    if any_hidden:
        sum_error.masked_fill_(hidden, 0.0)
        score.masked_fill_(hidden, 0.0)
        empty_rows = hidden.all(1).reshape(n, -1, R).any(1).sum(1)  # of some text
    sum_error, score = (x.reshape(n, -1).amax(1) for x in (sum_error, score))
    unclear = weight_error = zero
    # The model's own weights or lse confirm a map whatever its values are, and one key has the weight 1.
    if first.problem is None and first.weights is None and not first.own_lse and S > 1:
        some = sampled_rows(R, TELLING_ROWS, m.device)
        seen = visible_keys(m, first.rows[some], (R, -1))
        similar = _may_be_similar(seen, v, tolerance[:, :, some]).reshape(n, -1).any(1)
        if quick:
            doubt = similar if doubt is None else doubt | similar
        elif bool(similar):
            seen = seen.expand(B, H, -1, -1)
            unclear = _has_similar_values(seen, v.to(m.dtype), tolerance[:, :, some]).view(1)
    if first.weights is not None:
        weight_error = _own_weight_error(first, m, first.weights, hidden).view(1)
    doubts = zero if doubt is None else doubt
    columns = (worst, at_worst, sum_error, empty_rows, unclear, score, weight_error, doubts)
    return torch.stack([x.to(m.dtype) for x in columns], 1)


def _for_queries(x: Tensor, H: int) -> Tensor:
    """Repeat x (B, G, …) for the H query heads, (B, H, …)."""
    return x if x.shape[1] == H else x.repeat_interleave(H // x.shape[1], 1)


def _own_weight_error(c: ComparedCall, m: AttentionMap, own: Tensor, hidden: Tensor) -> Tensor:
    """Return how far the weights of a map are from those of the model's own implementation."""
    (B, H, _, S), G = m.matrix, c.v.shape[1]
    errors: list[Tensor] = []
    step = max(1, WEIGHT_BYTES // max(1, B * len(c.rows) * S * m.dtype.itemsize) * G // H) * (H // G)
    for first in range(0, H, step):
        heads = slice(first, min(first + step, H))
        part = m.select(slice(0, B), heads)
        weights, own_weights = part.tile(c.rows), own[:, heads].to(m.dtype)
        visible = ~hidden[:, heads]
        error = _weight_error(weights, own_weights, visible)
        # Some implementations return weights without the sink logit's share.
        if part.sinks is not None:
            total = weights.sum(-1, keepdim=True)
            normalised = _weight_error(weights / total, own_weights, visible & (total[..., 0] > 0))
            error = torch.minimum(error, normalised)
        errors.append(error)
    return torch.stack(errors).amax()


def _weight_error(weights: Tensor, own_weights: Tensor, visible: Tensor) -> Tensor:
    """The largest difference of weights (B, h, rows, S) over the rows that have a visible key."""
    return (weights - own_weights).abs().masked_fill(~visible[..., None], 0.0).amax()


def _facts(c: ComparedCall) -> dict[str, Any]:
    """Return what the evidence of a comparison has in common with that of its batch."""
    m, (units, stored_eps, _) = c.m, _rounding(c)
    is_stored_coarsely = stored_eps > torch.finfo(m.dtype).eps
    weights_eps = stored_eps if c.weights is None else torch.finfo(c.weights.dtype).eps
    return {
        "rows": len(c.rows),
        "total_rows": m.matrix[2],
        "mask": str(m.mask),
        "scale": m.scale,
        "softcap": m.softcap,
        "window": m.mask.window_size(),
        "sinks": m.sinks is not None,
        # Kernels in half precision use a fast, less accurate exp.
        "row_sums_tolerance": units + (stored_eps / 8 if is_stored_coarsely else 0),
        "weights_tolerance": 2.0 * weights_eps + units,
    }


def _evidence(c: ComparedCall, measured: _Measured, facts: dict[str, Any]) -> Evidence:
    """Return the evidence that the numbers of a comparison amount to."""
    tolerance = measured.tolerance or _rounding(c)[2]
    return Evidence(
        difference=measured.ratio * tolerance,
        tolerance=tolerance,
        row_sums=measured.sums,
        problem=SIMILAR_VALUES if measured.unclear else c.problem,
        against=c.against,
        weights=None if c.weights is None else measured.weights,
        scores=measured.score,
        empty_rows=int(measured.empty),
        **facts,
    )


def smallest_error(dtype: torch.dtype) -> float:
    """The rounding error of a number near 0; float16 has numbers below its smallest normal one."""
    return min(torch.finfo(dtype).tiny, 2.0**-24)


def _may_be_similar(seen: Tensor, values: Tensor, tolerance: Tensor) -> Tensor:
    """Whether half of the rows of a head (B, H) may see too many values near their median: without a median.

    `seen` (B or 1, H or 1, rows, S) are the keys of the rows, `values` (B, G, S, E). With fewer than n/4 of n
    keys away from the median, all but n/2 pairs of neighbours are near it, and so near each other. Medians
    take most of the time of a certificate, and few values are as similar as that.
    """
    B, G, _, E = values.shape
    room = tolerance.nan_to_num(torch.inf, torch.inf).amax(2).reshape(B, G, -1, 1, E).amax(2)
    room *= 2 * DISTINCT * (1.0 + torch.finfo(values.dtype).eps)  # since half precision rounds a difference
    differ = ~(values.diff(dim=2).abs_() <= room).all(-1)  # (B, G, S − 1)
    if seen.shape[1] > 1:  # heads see keys of their own
        differ = _for_queries(differ, seen.shape[1])
    far = (seen[..., 1:] & seen[..., :-1] & differ.unsqueeze(2)).sum(-1)  # pairs of neighbours that differ
    keys = seen.sum(-1)
    several = keys > 1
    return 2 * (several & (2 * far < keys)).sum(-1) > several.sum(-1)


def _has_similar_values(seen: Tensor, values: Tensor, tolerance: Tensor) -> Tensor:
    """Whether the values of some head are too similar for the output to determine its weights.

    A row determines something of its weights if, by its `tolerance` (B, H, rows, E), at least a quarter of
    the `values` (B, G, S, E) that it sees, by `seen` (B, H, rows, S), differ from their median, which a few
    large values do not move. At least half of the rows of a head have to.
    """
    B, H, rows, _ = seen.shape
    silent, judged = torch.zeros(2, B, H, device=seen.device)
    for head in range(H):  # one at a time, since a median copies all values
        own = values[:, head * values.shape[1] // H]  # (B, S, E)
        for row in range(rows):
            is_seen = seen[:, head, row]  # (B, S)
            median = own.masked_fill(~is_seen[..., None], torch.nan).nanmedian(1, keepdim=True).values
            differs = ~((own - median).abs() <= DISTINCT * tolerance[:, head, row, None]).all(-1)
            keys = is_seen.sum(-1)
            silent[:, head] += (keys > 1) & (4 * (differs & is_seen).sum(-1) < keys)
            judged[:, head] += keys > 1
    is_similar: Tensor = 2 * silent > judged
    return is_similar.any()
