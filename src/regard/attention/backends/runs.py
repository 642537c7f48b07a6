"""Runs: spans of positions, equal or very unequal, cut into pieces of a few widths, and joined again.

A kernel reduces a tile over pieces of one width. A long span is cut into several runs and a short one is a
run of its own. A few runs of another width are padded; many form a group of their own, so that one token
beside 100,000 costs one token.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

MIN_PADDING = 256  # places that a group of runs may waste before another group costs less
PADDING_SHARE = 12  # one place in so many may be wasted by each group


class RunGroup(NamedTuple):
    """Runs of one width, in the order of their positions."""

    spans: Tensor  # (runs,) the span that a run belongs to
    places: Tensor  # (runs, width) positions; −1 where a run is shorter


def cut_into_runs(starts: Tensor, stops: Tensor, max_width: int) -> list[RunGroup]:
    """Cut the spans from `starts` (spans,) to `stops` (spans,) into runs of `max_width` and what is left.

    Every width is a power of two, as `max_width` has to be.
    """
    lengths = stops - starts
    whole, rest = lengths // max_width, lengths % max_width
    per_span = whole + (rest > 0)
    spans = torch.arange(len(starts), device=starts.device).repeat_interleave(per_span)
    number = torch.arange(len(spans), device=spans.device) - (per_span.cumsum(0) - per_span)[spans]
    first = starts[spans] + number * max_width
    own = (stops[spans] - first).clamp(max=max_width)  # the places that a run fills
    powers = 2 ** torch.arange(max_width.bit_length(), device=own.device)
    widths = _merge_widths(powers[torch.searchsorted(powers, own)])
    groups = []
    for width in torch.unique(widths).tolist():
        runs = (widths == width).nonzero().flatten()
        places = first[runs, None] + torch.arange(width, device=runs.device)
        groups.append(RunGroup(spans[runs], places.where(places < (first + own)[runs, None], -1)))
    return groups


def _merge_widths(widths: Tensor) -> Tensor:
    """The widths (runs,), some of them raised to a larger one where that wastes few places."""
    distinct, number, counts = torch.unique(widths, return_inverse=True, return_counts=True)
    runs = counts.tolist()
    merged, group, wasted = distinct.tolist(), 0, 0
    most = max(
        MIN_PADDING, sum(width * count for width, count in zip(merged, runs, strict=True)) // PADDING_SHARE
    )
    for i in range(len(merged) - 1, -1, -1):  # from the widest
        padding = (group - merged[i]) * runs[i]
        if group and wasted + padding <= most:
            wasted += padding
        else:
            group, wasted = merged[i], 0
        merged[i] = group
    return torch.tensor(merged, dtype=widths.dtype, device=widths.device)[number]


def join_runs(x: Tensor, spans: Tensor, count: int, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
    """Reduce x (runs, …) to each of `count` spans; the largest is at least 0 and the least at most 0.

    The result has the same bits every time, also on a GPU.
    """
    joined = x.new_zeros(count, *x.shape[1:])
    if not len(spans):
        return joined
    if reduce != "sum":
        index = spans.view(-1, *(1,) * (x.ndim - 1)).expand_as(x)
        return joined.scatter_reduce_(0, index, x, reduce)
    # index_put_ with accumulate sorts the indices first on a GPU, which makes the order of the sum fixed.
    if x.is_cuda:  # index_add_ adds in any order there
        return joined.index_put_((spans,), x, accumulate=True)
    return joined.index_add_(0, spans, x)
