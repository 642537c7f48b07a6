"""Compares maps with the output of the model's own attention, as many calls at once as can be.

The calls of a forward pass are judged together: those of equal sizes are compared as one batch, and all
numbers come from their device in one transfer. A GPU waits for every question about its numbers, and small
operations cost more than what they compute. What the numbers mean is said by `certificate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.base import full
from regard.maps import AttentionMap
from regard.maps.tile_passes.dense_rows import NORMALISED
from regard.maps.tile_passes.large_heads import has_large_lse, no_large_heads
from regard.recorder.certificates.certificate import OWN_OUTPUT, ROWS, Evidence, largest, sampled_rows
from regard.recorder.certificates.row_products import KEYS_OF_SUM, multiply_by_blocks, multiply_rows

TILE_BYTES = 1 << 26  # bytes of weights that are computed at a time
GPU_TILE_BYTES = 1 << 29  # the same on a GPU, which waits for Python between small tiles
GPU_JOINED_BYTES = 1 << 27  # bytes of weights of the calls that a GPU compares as one batch
ROUNDING_UNITS = {torch.float32: 256, torch.float64: 1024}
"""By how many units in the last place a weight, or the sum of a row, may be off. Large scores are
recomputed in float64, where a float32 map is exact; a float64 map has nothing finer to be computed in."""
DISTINCT = 8  # values must differ by this many tolerances for the output to determine the weights
TELLING_ROWS = 8  # rows of a head of which it is asked whether they determine the weights
SIMILAR_VALUES = "its values are so similar that its output does not determine its weights"


class DenseWeights:
    """A matrix of weights (B, H, T, S) in the form in which `examine` takes a map."""

    sinks: Tensor | None = None
    scale, softcap, mask, is_dense = 1.0, None, full, True

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.matrix = tuple(weights.shape)
        self.device = weights.device
        self.stored_dtype = weights.dtype
        self.dtype = working_dtype(weights.dtype)

    @property
    def lse(self) -> Tensor:
        """0, by which the weights count as they are, or −inf where a row has none."""
        empty = (self.weights == 0).all(-1)
        return torch.zeros_like(empty, dtype=self.dtype).masked_fill_(empty, -torch.inf)

    def select(self, batch: slice, heads: slice) -> DenseWeights:
        """Select sequences and heads."""
        return DenseWeights(self.weights[batch, heads])

    def tile(self, rows: slice | Tensor) -> Tensor:
        """The weights of some rows, (B, H, rows, S)."""
        return self.weights[:, :, rows].to(self.dtype)


WeightMatrix = AttentionMap | DenseWeights
"""Attention weights (B, H, T, S) that can be compared: those of a map, or those of a dense tensor."""


class ComparedCall(NamedTuple):
    """A map (B, H, T, S), and what the model's own attention gave at some of its rows."""

    m: WeightMatrix
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
    def settings(self) -> tuple[object, ...]:
        """What two calls must have in common, beside their masks, to be compared as one batch."""
        tensors = (self.v, self.output, self.m.lse)
        shapes = (*((x.shape, x.dtype) for x in tensors), self.m.matrix, self.m.stored_dtype, self.m.device)
        return (*shapes, self.m.scale, self.m.softcap, self.own_lse, self.problem is None)

    @property
    def can_be_joined(self) -> bool:
        """Whether nothing in it belongs to one text or head, but for q, k, v and the output."""
        is_plain = self.weights is None and self.m.sinks is None and not self.softly_masked_rows
        by_position = all(mask.positional for mask in self.m.mask.conjuncts())
        return isinstance(self.m, AttentionMap) and is_plain and by_position and self.tile_bytes > 0

    @property
    def tile_bytes(self) -> int:
        """The bytes of the weights of all its rows."""
        B, H, _, S = self.m.matrix
        return B * H * len(self.rows) * S * self.m.dtype.itemsize

    @property
    def tile_limit(self) -> int:
        """The bytes of weights that are computed at a time."""
        return GPU_TILE_BYTES if self.m.device.type == "cuda" else TILE_BYTES


def examine(
    m: WeightMatrix,
    v: Tensor,
    output: Tensor,
    *,
    weights: Tensor | None = None,
    own_lse: bool = False,
    softly_masked_rows: bool = False,
    problem: str | None = None,
    against: str = OWN_OUTPUT,
    max_rows: int | None = ROWS,
) -> Evidence:
    """Compare a map (B, H, T, S) and its values v (B, G, S, E) with the model's output (B, H, T, E).

    `weights` are (B, H, T, S), and `max_rows` is the number of rows to compare, or None for all of them. The
    other arguments are those of a `ComparedCall`.
    """
    rows = sampled_rows(m.matrix[2], m.matrix[2] if max_rows is None else max_rows, m.device)
    output, own = at_rows(output, rows), None if weights is None else at_rows(weights, rows)
    options = (own_lse, softly_masked_rows, problem, against)
    (evidence,) = judge([ComparedCall(m, v, rows, output, own, *options)])
    return evidence


def at_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of x (B, H, T, …)."""
    return x if len(rows) == x.shape[2] else x.index_select(2, rows.to(x.device))


def judge(comparisons: Sequence[ComparedCall]) -> list[Evidence]:
    """Return the evidence of comparisons, which are made in as few operations as can be."""
    batches: list[list[int]] = []
    of_kind: dict[object, list[list[int]]] = {}
    for i, comparison in enumerate(comparisons):
        # A comparison that cannot be joined is a batch of its own.
        alike = of_kind.setdefault(comparison.settings if comparison.can_be_joined else i, [])
        for batch in alike:
            if _fits(comparisons[batch[0]], comparison, len(batch)):
                batch.append(i)
                break
        else:
            alike.append([i])
            batches.append(alike[-1])
    measured = [_measure([comparisons[i] for i in batch], quick=True) for batch in batches]
    evidence: dict[int, Evidence] = {}
    for batch, numbers in zip(batches, _read(measured), strict=True):
        for i, own in zip(batch, zip(*numbers, strict=True), strict=True):
            if not all(math.isfinite(part[_TOTAL]) for part in own):
                (again,) = _read([_measure([comparisons[i]], quick=False)])
                own = tuple(part[0] for part in again)
            evidence[i] = _evidence(comparisons[i], own)
    return [evidence[i] for i in range(len(comparisons))]


def _fits(first: ComparedCall, comparison: ComparedCall, number: int) -> bool:
    """Whether a comparison fits into a batch of this number, the first of which has the same settings."""
    # On a GPU the copies that join calls cost as much as judging longer ones.
    limit = GPU_JOINED_BYTES if first.m.device.type == "cuda" else TILE_BYTES
    return (number + 1) * first.tile_bytes <= limit and first.m.mask == comparison.m.mask


_RATIO, _TOLERANCE, _SUMS, _EMPTY, _UNCLEAR, _SCORE, _WEIGHTS, _TOTAL = range(8)
"""The columns of what `_measure` returns."""
Numbers = list[list[float]]  # of one group of heads: a row for each comparison


def _read(measured: Sequence[list[Tensor]]) -> list[list[Numbers]]:
    """Read tensors (comparisons, 8) with one transfer from each device."""
    kinds = dict.fromkeys((x.device, x.dtype) for parts in measured for x in parts)
    numbers: dict[int, Numbers] = {}
    for kind in kinds:
        parts = [x for group in measured for x in group if (x.device, x.dtype) == kind]
        rows = torch.cat(parts).tolist()
        for part in parts:
            numbers[id(part)], rows = rows[: len(part)], rows[len(part) :]
    return [[numbers[id(part)] for part in parts] for parts in measured]


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
def _measure(batch: list[ComparedCall], *, quick: bool) -> list[Tensor]:
    """Return the numbers of comparisons that are alike, (comparisons, 8) for each group of heads.

    `quick` expects what holds for nearly all calls: that all products are finite and, so that nothing waits
    for a GPU, that no head has large scores and that values differ. The last column is not finite where one
    of these does not hold.
    """
    n, first = len(batch), batch[0]
    m, v, output = first.m, first.v, first.output
    if n > 1:
        maps = [c.m for c in batch if isinstance(c.m, AttentionMap)]
        q, k, lse = (torch.cat([getattr(x, name) for x in maps]) for name in ("q", "k", "lse"))
        m = maps[0]._with(q=q, k=k, lse=lse)
        v, output = torch.cat([c.v for c in batch]), torch.cat([c.output for c in batch])
    B, H, T, S = m.matrix
    doubt = v.new_zeros(n, dtype=torch.bool)
    is_unread = quick and m.device.type == "cuda"
    if is_unread and isinstance(m, AttentionMap) and m.stored_dtype != torch.float32 and m.softcap is None:
        large = has_large_lse(m.lse, m.mask, S, m.first_position, half_precision=True)
        doubt, m = large.reshape(n, -1).any(1), m._with(precise=no_large_heads(B, H))
    # A slice takes no copy of the queries and of the lse.
    rows = slice(None) if len(first.rows) == T else first.rows.to(m.device)
    _, _, rounding = _rounding(first)

    # A weight below the smallest number of its dtype is lost, whatever its value.
    smallest = max(smallest_error(output.dtype), smallest_error(m.stored_dtype))
    # The model's own weights or lse confirm a map whatever its values are, and one key has the weight 1.
    is_judged = first.problem is None and first.weights is None and not first.own_lse and S > 1
    zero = v.new_zeros(n, dtype=m.dtype)
    numbers: list[Tensor] = []

    # The weights are computed for whole groups of query heads at a time, as many as fit into a tile.
    group = H // max(v.shape[1], 1)
    per_head = max(1, B * len(first.rows) * S * m.dtype.itemsize)
    heads_at_once = max(1, first.tile_limit // per_head // group) * group
    for start in range(0, H if 0 not in (B, T, S) else 0, heads_at_once):
        heads = slice(start, min(start + heads_at_once, H))
        part = m if heads_at_once >= H else m.select(slice(0, B), heads)
        kv_heads = slice(start // group, (start + heads_at_once) // group)
        own_v = v[:, kv_heads]  # (B, g, S, E)
        lse = part.lse[:, :, rows]  # (B, h, rows)
        # NaN is not the mark of a row without a visible key, and is not to be left out like one.
        hidden = lse == -torch.inf  # rows without a visible key

        # The output that the map's weights give, against the model's own.
        model_output = output[:, heads].to(m.dtype)  # (B, h, rows, E)
        part_weights = None
        if is_unread and isinstance(part, AttentionMap) and _goes_by_blocks(first, part):
            product, sizes, row_sum = multiply_by_blocks(part, first.rows, own_v)
        else:
            part_weights = part.tile(rows)  # (B, h, rows, S)
            # 0 · inf is NaN: values without any weight are left out where a product is not finite.
            own_v = own_v if quick else _used_values(part_weights, own_v)
            product, sizes, row_sum = multiply_rows(part_weights, own_v.to(m.dtype))
        total = product.reshape(n, -1).sum(1)  # not finite if a product is not, since 0 · inf is NaN
        # Every error of a kernel is relative to a weight or to the sum: those of the scores and of the
        # log-sum-exp, the rounding of the weights before the product, its accumulation. So a row may be off
        # by its own Σ w |v|, and a large value that a row hardly uses does not loosen it.
        size_of_values = torch.linalg.vector_norm(own_v, 1, 2, keepdim=True, dtype=working_dtype(v.dtype))
        lost = (smallest * (1.0 + size_of_values)).to(m.dtype)  # (B, g, 1, E)
        tolerance = torch.add(lost.repeat_interleave(group, 1), sizes, alpha=rounding)
        ratio = product.sub_(model_output).abs_().div_(tolerance)
        if first.softly_masked_rows:
            # In such rows Transformers' eager attention gives the mean of the values, and PyTorch's kernels
            # give zeros.
            mean = own_v.to(m.dtype).mean(2, keepdim=True).repeat_interleave(group, 1)  # (B, h, 1, E)
            room = (size_of_values * (rounding / S) + lost).repeat_interleave(group, 1)
            ratio = torch.where(hidden[..., None], _empty_row_error(model_output, mean) / room, ratio)
            tolerance = torch.where(hidden[..., None], room, tolerance)
        else:
            # What a kernel returns for a row without a visible key is its own business: zeros, NaN or a mean.
            ratio.masked_fill_(hidden[..., None], 0.0)
        at_worst = [zero, zero]
        if ratio.numel():
            worst, place = ratio.reshape(n, -1).max(1, keepdim=True)  # NaN if there is one
            at_worst = [worst[:, 0], tolerance.reshape(n, -1).gather(1, place)[:, 0]]

        # The sums of the rows, with the weight of the sink logit.
        if part.sinks is not None:
            row_sum = row_sum + (part.sinks.to(lse.dtype).view(1, -1, 1) - lse).exp()
        sum_error = (row_sum - 1.0).masked_fill_(hidden, 0.0).abs_().reshape(n, -1).amax(1)

        in_no_head = hidden.all(1).reshape(n, -1, len(first.rows))
        empty_rows = in_no_head.any(1).sum(1)  # of some text
        largest_score = lse.abs().masked_fill_(hidden, 0.0).reshape(n, -1).amax(1)
        undetermined = weight_error = zero
        if is_judged:
            unclear, similar = _undetermined(part, first.rows, own_v, tolerance, is_unread)
            undetermined, doubt = unclear.reshape(n, -1).any(1), doubt | similar.reshape(n, -1).any(1)
        if first.weights is not None and part_weights is not None:
            weight_error = _own_weight_error(first, part, heads, part_weights, ~hidden)
        total = total.masked_fill_(doubt, torch.nan)
        columns = (*at_worst, sum_error, empty_rows, undetermined, largest_score, weight_error, total)
        numbers.append(torch.stack([x.to(m.dtype) for x in columns], 1))
    return numbers or [v.new_zeros(n, 8, dtype=m.dtype)]


def _goes_by_blocks(c: ComparedCall, m: AttentionMap) -> bool:
    """Whether the rows of a map are multiplied a block of keys at a time, without all of their weights."""
    if c.weights is not None or m.dtype != torch.float32:
        return False
    B, H, _, S = m.matrix
    is_of_one = c.v.dtype == m.q.dtype == m.k.dtype
    is_long = S >= 2 * KEYS_OF_SUM and B * H * len(c.rows) * S > NORMALISED
    return is_of_one and is_long and m.softcap is None and not m.mask.biased and m.precise.lse is None


def _own_weight_error(
    c: ComparedCall, part: WeightMatrix, heads: slice, weights: Tensor, visible: Tensor
) -> Tensor:
    """Return how far the weights of some heads are from those of the model's own implementation, (1,)."""
    assert c.weights is not None
    own_weights = c.weights[:, heads].to(weights.dtype)
    error = _weight_error(weights, own_weights, visible)
    # Some implementations return weights without the sink logit's share.
    if part.sinks is not None:
        total = weights.sum(-1, keepdim=True)
        normalised = _weight_error(weights / total, own_weights, visible & (total[..., 0] > 0))
        error = torch.minimum(error, normalised)
    return error.view(1)


def _evidence(c: ComparedCall, parts: Sequence[Sequence[float]]) -> Evidence:
    """Return the evidence that numbers amount to, a row for each group of heads."""
    m, (units, stored_eps, rounding) = c.m, _rounding(c)
    worst = max(parts, key=lambda part: math.inf if math.isnan(part[_RATIO]) else part[_RATIO])
    tolerance = worst[_TOLERANCE] or rounding
    is_stored_coarsely = stored_eps > torch.finfo(m.dtype).eps
    weights_eps = stored_eps if c.weights is None else torch.finfo(c.weights.dtype).eps
    return Evidence(
        difference=worst[_RATIO] * tolerance,
        tolerance=tolerance,
        row_sums=largest([part[_SUMS] for part in parts]),
        rows=len(c.rows),
        total_rows=m.matrix[2],
        mask=str(m.mask),
        scale=m.scale,
        softcap=m.softcap,
        window=m.mask.window_size(),
        sinks=m.sinks is not None,
        problem=SIMILAR_VALUES if any(part[_UNCLEAR] for part in parts) else c.problem,
        # Kernels in half precision use a fast, less accurate exp; stored weights are rounded one by one.
        row_sums_tolerance=units + (stored_eps / (2 if m.is_dense else 8) if is_stored_coarsely else 0),
        against=c.against,
        weights=None if c.weights is None else largest([part[_WEIGHTS] for part in parts]),
        weights_tolerance=2.0 * weights_eps + units,
        scores=largest([part[_SCORE] for part in parts]),
        empty_rows=int(max(part[_EMPTY] for part in parts)),
    )


def smallest_error(dtype: torch.dtype) -> float:
    """The rounding error of a number near 0; float16 has numbers below its smallest normal one."""
    return min(torch.finfo(dtype).tiny, 2.0**-24)


def _empty_row_error(output: Tensor, mean: Tensor) -> Tensor:
    """How far the output of rows without a visible key is from both 0 and the mean value; NaN counts as 0."""
    return torch.minimum(output.abs(), (output - mean).abs()).nan_to_num(0.0)


def _weight_error(weights: Tensor, own_weights: Tensor, visible: Tensor) -> Tensor:
    """The largest difference of weights (B, h, rows, S) over the rows that have a visible key."""
    return (weights - own_weights).abs().masked_fill(~visible[..., None], 0.0).amax()


def _undetermined(
    m: WeightMatrix, rows: Tensor, values: Tensor, tolerance: Tensor, is_unread: bool
) -> tuple[Tensor, Tensor]:
    """Return for which heads (B, h) the values are too similar for the output to determine the weights.

    The second tensor (B, …) says where that is in doubt: if `is_unread`, no number is read to resolve it.

    A row determines something of its weights if, by its `tolerance` (B, h, rows, E), at least a quarter of
    the `values` (B, g, S, E) that it sees differ from their median, which a few large values do not move. At
    least half of the rows of a head have to.
    """
    some = sampled_rows(len(rows), TELLING_ROWS, rows.device)
    shape = (*tolerance.shape[:2], *m.matrix[2:])
    seen = m.mask.tile(rows[some], slice(0, shape[3]), shape, device=rows.device).expand(*shape[:2], -1, -1)
    similar, none = _may_be_similar(seen, values, tolerance[:, :, some]), torch.zeros_like(seen[:, :, 0, 0])
    if is_unread or not bool(similar.any()):
        return none, similar
    values = values.to(tolerance.dtype).repeat_interleave(shape[1] // values.shape[1], 1)  # (B, h, S, E)
    silent, judged = torch.zeros(2, *shape[:2], device=rows.device)
    for i, row in enumerate(some):
        is_seen = seen[:, :, i]  # (B, h, S)
        median = values.masked_fill(~is_seen[..., None], torch.nan).nanmedian(2, keepdim=True).values
        differs = ~((values - median).abs() <= DISTINCT * tolerance[:, :, row, None]).all(-1)  # NaN counts
        keys = is_seen.sum(-1)
        silent += (keys > 1) & (4 * (differs & is_seen).sum(-1) < keys)
        judged += keys > 1
    undetermined: Tensor = 2 * silent > judged
    return undetermined, none


def _may_be_similar(seen: Tensor, values: Tensor, tolerance: Tensor) -> Tensor:
    """Whether half of the rows of a head (B, h) may see too many values near their median: without a median.

    `seen` (B, h, rows, S) are the keys of the rows, `values` (B, g, S, E). With fewer than n/4 of n keys away
    from the median, all but n/2 pairs of neighbours are near it, and so near each other. Medians take most
    of the time of a certificate, and few values are as similar as that.
    """
    B, g, S, _ = values.shape
    room = tolerance.nan_to_num(torch.inf, torch.inf).amax(2).reshape(B, g, -1, 1, values.shape[-1]).amax(2)
    room *= 2 * DISTINCT * (1.0 + torch.finfo(values.dtype).eps)  # since half precision rounds a difference
    near = (values.diff(dim=2).abs_() <= room).all(-1)  # (B, g, S − 1)
    pairs = (seen[..., 1:] & seen[..., :-1]).reshape(B, g, -1, S - 1)
    far = (pairs & ~near.unsqueeze(2)).sum(-1).reshape(seen.shape[:3])  # pairs of neighbours that differ
    keys = seen.sum(-1)
    may_be = (keys > 1) & (2 * far < keys)
    return 2 * may_be.sum(-1) > (keys > 1).sum(-1)


def _used_values(weights: Tensor, values: Tensor) -> Tensor:
    """The values (B, g, S, E) with zeros for those without any weight (B, h, rows, S): 0 · NaN is NaN."""
    grouped = weights.reshape(*values.shape[:2], -1, values.shape[2])
    used = grouped.amax(-2).unsqueeze(-1) != 0  # (B, g, S, 1); NaN counts
    return values.masked_fill(~used, 0.0)
