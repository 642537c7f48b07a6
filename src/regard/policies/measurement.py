"""`measure`: what a policy loses of a layer: the share of every row, and the error of its output.

The share of a row that the kept keys hold is exp(lse of the kept keys − lse of all keys), exactly; the error
of the output follows from two fused attentions. An eviction policy is asked whenever the cache is full; the
queries until the next time attend to a list of keys, which is gathered. A selection policy is asked for a few
rows at a time. No T×S matrix is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.attend import attend
from regard.attention.masks.base import Mask, conjunction
from regard.attention.masks.grid import grid
from regard.attention.masks.named_masks import causal
from regard.maps import AttentionMap, attention_map
from regard.maps.index import select_kv_heads
from regard.maps.tile_passes import precision
from regard.maps.tile_passes.dense_rows import tile_scores
from regard.maps.tile_passes.sweep import finite_lse
from regard.policies.cache_state import CacheState, find_visible, gather_keys, is_plainly_causal
from regard.policies.policy import Eviction, Policy, Selection, SelectionState

ROUND = 8  # a full cache loses an eighth of its keys at a time, unless `every` says otherwise
NUMBERS = 1 << 24  # entries of the matrix that are looked at together: 64 MiB of scores
NUMBERS_ON_GPU = 1 << 26  # more, so that Python does not wait between small kernels


class MapRetention(NamedTuple):
    """What is left of every row of a map, (B, H, T) each."""

    share: Tensor
    """The share of the row's attention to keys that the kept keys hold, float64; 0 where it saw none."""
    error: Tensor | None
    """The norm of the output's change over the norm of the output, float64; None without values."""
    concerned: Tensor
    """Whether the row sees more keys than the policy may keep; all others lose nothing."""


def stack_layers(layers: Sequence[Any], name: str) -> Tensor:
    """The field `name` of the results of several layers as one tensor (layers, B, H, T) on the CPU."""
    tensors = [x.cpu() for layer in layers if (x := getattr(layer, name)) is not None]
    if len(tensors) < len(layers):
        raise ValueError(f"{name}: the values were not stored: capture with values=True")
    if len({x.shape for x in tensors}) > 1:
        raise ValueError("expected layers of one shape, got several: see `layers`, which has them one by one")
    return torch.stack(tensors)


class HeadOutputs(NamedTuple):
    """The output (B, H, rows, E) of some rows, and the log-sum-exp (B, H, rows) of their scores on keys."""

    output: Tensor
    lse: Tensor


class KeptKeys(NamedTuple):
    """The keys that some rows attend to under a policy, with their values and the mask between them."""

    rows: slice
    k: Tensor  # (B, G, n, D)
    v: Tensor  # (B, G, n, E)
    mask: Mask
    complete: bool | Tensor
    """Whether no visible key is missing, for all rows or for each (B, H, rows)."""
    chosen: Tensor | None = None
    """Which of the first keys each query has chosen, boolean (B, H, rows, keys), instead of the mask."""


def measure(
    m: AttentionMap,
    v: Tensor | None,
    policy: Policy | Mask,
    budget: int | None = None,
    every: int | None = None,
    *,
    whole: HeadOutputs | None = None,
) -> MapRetention:
    """Measure what a policy loses of a map (B, H, T, S) with values v (B, G, S, E), which may be None.

    - `policy`: an `Eviction` or a `Selection`, or a mask that shows the keys that are kept.
    - `budget`: the number of keys that a cache has room for, or that a query reads; none for a mask.
    - `every`: how many keys are evicted at a time, by default an eighth of the budget.
    - `whole`: what `attend_whole(m, v)` gives, if several policies are measured on one map.

    A row in which nothing is missing has the share 1 and the error 0, exactly.
    """
    values = m.k[..., :0] if v is None else v
    whole = attend_whole(m, v) if whole is None else whole
    if isinstance(policy, Mask):
        kept = _under_mask(m, values, m.mask.restrict(policy))
        concerned = count_visible(m, m.mask) > count_visible(m, kept.mask)
        return _compare(m, whole, iter([kept._replace(complete=~concerned)]), concerned)
    budget = check_whole_number("budget", budget)
    parts = _find_kept(m, values, policy, budget, every)
    return _compare(m, whole, parts, count_visible(m, m.mask) > budget)


def attend_whole(m: AttentionMap, v: Tensor | None, mask: Mask | None = None) -> HeadOutputs:
    """Attend to all keys under the map's own mask, or another one: what every policy is compared with."""
    values = m.k[..., :0] if v is None else v
    return _attend(m, slice(0, m.matrix[2]), m.k, values, m.mask if mask is None else mask)


def attend_kept(
    m: AttentionMap, v: Tensor, policy: Policy, budget: int, every: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """The outputs under a policy, (B, H, rows, E) of some rows at a time, without those that lose nothing.

    The arguments are those of `measure`.
    """
    for kept in _find_kept(m, v, policy, budget, every):
        if kept.complete is not True:
            yield kept.rows, _attend_kept(m, kept).output


def measure_own(m: AttentionMap, v: Tensor | None) -> MapRetention:
    """Measure what a layer's own selection or window loses of causal attention to the same keys.

    Padding and documents are no loss: they stay hidden.
    """
    values = m.k[..., :0] if v is None else v
    check_cached(m)
    everything = conjunction([causal, *(x for x in m.mask.conjuncts() if x.is_padding or x.is_documents)])
    concerned = count_visible(m, everything) > count_visible(m, m.mask)
    kept = _under_mask(m, values, m.mask)._replace(complete=~concerned)
    return _compare(m, attend_whole(m, v, everything), iter([kept]), concerned)


def check_square(m: AttentionMap) -> None:
    """Raise a ValueError unless a map has as many queries as keys."""
    _, _, T, S = m.matrix
    if T != S:
        raise ValueError(
            f"policy: expected the attention of a text to itself, got {T} queries and {S} "
            "keys: capture the whole text at once"
        )


def check_cached(m: AttentionMap) -> None:
    """Raise a ValueError unless every query is there, and none sees a later key."""
    check_square(m)
    S = m.matrix[3]
    if is_plainly_causal(m) or m.mask.is_causal:
        return
    for rows in row_blocks(m):
        queries = torch.arange(rows.start, rows.stop, device=m.device)
        later = torch.arange(S, device=m.device) > queries[:, None]
        if bool((m.mask.tile(rows, slice(0, S), m.matrix, device=m.device) & later).any()):
            raise ValueError("policy: expected causal attention, but some queries see later keys")


def count_visible(m: AttentionMap, mask: Mask) -> Tensor:
    """The number of keys that every query sees under a mask, (B, H, T)."""
    B, H, T, S = m.matrix
    if mask is m.mask and is_plainly_causal(m):
        return (torch.arange(T, device=m.device) + S - T + 1).expand(B, H, T)
    counts = [
        mask.tile(rows, slice(0, S), m.matrix, device=m.device).sum(-1).expand(B, H, -1)
        for rows in row_blocks(m)
    ]
    return torch.cat(counts, -1) if counts else torch.zeros(B, H, T, dtype=torch.long, device=m.device)


def row_blocks(m: AttentionMap) -> Iterator[slice]:
    """Runs of rows, few enough that their part of the matrix is small."""
    B, H, T, S = m.matrix
    step = max(1, (NUMBERS_ON_GPU if m.device.type == "cuda" else NUMBERS) // max(B * H * S, 1))
    return (slice(first, min(first + step, T)) for first in range(0, T, step))


def evicted_positions(
    m: AttentionMap, policy: Eviction, budget: int, every: int
) -> Iterator[tuple[slice, Tensor]]:
    """The runs of rows between two evictions, each with the positions (B, G, n) of all keys cached then.

    The keys of the rows themselves are the last ones of the list. A cache never holds more than `budget`.
    """
    B, _, T, _ = m.matrix
    G = m.k.shape[1]
    positions = torch.zeros(B, G, 0, dtype=torch.long, device=m.device)
    received = m.lse.new_zeros(B, G, 0)
    start = 0
    while start < T:
        stop = min(start + budget - positions.shape[-1], T)
        rows = slice(start, stop)
        added = torch.arange(start, stop, device=m.device)
        positions = torch.cat([positions, added.expand(B, G, -1)], -1)
        yield rows, positions
        if stop == T:
            return
        if policy.accumulates:
            received = torch.cat([received, received.new_zeros(B, G, len(added))], -1)
            received += _sum_received(m, rows, positions, budget)
        # A copy of the positions: a policy that writes to them would change which keys are cached.
        known = received if policy.accumulates else None
        state = CacheState(m, positions.clone(), stop, budget, known)
        scores = _check_scores(policy, policy.score(state), positions.shape)
        scores = scores.masked_fill(~state.visible, -torch.inf)
        # Stable: of equal scores, as those of keys that nobody sees, the oldest keys are evicted.
        kept = scores.argsort(stable=True, dim=-1)[..., every:].sort().values
        positions, start = positions.gather(-1, kept), stop
        received = received.gather(-1, kept) if policy.accumulates else received


def _sum_received(m: AttentionMap, rows: slice, positions: Tensor, budget: int) -> Tensor:
    """The attention that some rows give to the cached keys at `positions`, (B, G, n).

    It is the mean over the query heads that share a key. The rows are those since the last eviction, and
    their own keys are the last of the list.
    """
    B, H, _, _ = m.matrix
    _, G, n = positions.shape
    step = max(1, NUMBERS // (B * H * n))
    if step < rows.stop - rows.start and is_plainly_causal(m):
        # Causal and nothing else, as in `_evict`: sums of columns have a fused kernel on a GPU.
        q, k = m.q[:, :, rows], gather_keys(m.k, positions)
        cached = attention_map(q, k, mask=causal, scale=m.scale, softcap=m.softcap, sinks=m.sinks)
        return cached.received().reshape(B, G, -1, n).mean(2)
    total = m.lse.new_zeros(B, G, n)
    for first in range(rows.start, rows.stop, step):
        stop = min(first + step, rows.stop)
        state = CacheState(m, positions, stop, budget)
        total += state.by_kv_head(state.attention(stop - first).sum(2))
    return total


def _check_scores(policy: Eviction, scores: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a policy's scores, or raise a ValueError if they are not one number for each cached key."""
    if not isinstance(scores, Tensor) or tuple(scores.shape) != tuple(shape):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"policy {policy}: expected scores {tuple(shape)}, one for each cached key, got {got}"
        )
    return _check_numbers(policy, scores, "cached key")


def _check_block_scores(policy: Selection, scores: Tensor, state: SelectionState) -> Tensor:
    """Return a policy's scores for all query heads, or raise a ValueError if a block has no number."""
    (B, H, _, _), G = state.map.matrix, state.map.k.shape[1]
    rows, blocks = state.rows.stop - state.rows.start, -(-state.keys.stop // state.block)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape not in ((B, G, rows, blocks), (B, H, rows, blocks)):
        raise ValueError(
            f"policy {policy}: expected scores {(B, H, rows, blocks)}, one for each query and block, "
            f"or the same for {G} key/value heads, got {shape}"
        )
    return _check_numbers(policy, scores, "block").repeat_interleave(H // scores.shape[1], 1)


def _check_numbers(policy: Policy, scores: Tensor, what: str) -> Tensor:
    """Return scores that can be compared as floats, or raise a ValueError if some are NaN or complex."""
    if scores.is_complex() or bool(scores.isnan().any()):
        got = "complex ones" if scores.is_complex() else "NaN"
        raise ValueError(f"policy {policy}: expected a number for each {what}, got {got}")
    # Positions, ranks and counts are good scores; −inf, which is no integer, marks keys that nobody sees.
    return scores if scores.is_floating_point() else scores.double()


def _find_kept(
    m: AttentionMap, v: Tensor, policy: Policy, budget: int, every: int | None
) -> Iterator[KeptKeys]:
    check_cached(m)
    if isinstance(policy, Selection):
        return _select(m, v, policy, budget)
    every = max(1, budget // ROUND) if every is None else check_whole_number("every", every, 1, budget)
    return _evict(m, v, policy, budget, every)


def _evict(m: AttentionMap, v: Tensor, policy: Eviction, budget: int, every: int) -> Iterator[KeptKeys]:
    plain, runs = is_plainly_causal(m), evicted_positions(m, policy, budget, every)
    if math.prod(m.matrix) <= NUMBERS:
        # Hundreds of small attentions take ten times as long as the scores of a short text, all at once.
        yield from _join_runs(m, v, runs)
        return
    for rows, positions in runs:
        # Earlier keys are seen by all rows, and the last keys are the rows' own: causal, and nothing else.
        mask = causal if plain else find_visible(m, rows, positions).mask()
        keys, values = (gather_keys(x, positions) for x in (m.k, v))
        yield KeptKeys(rows, keys, values, mask, positions.shape[-1] == rows.stop)


def _join_runs(m: AttentionMap, v: Tensor, runs: Iterator[tuple[slice, Tensor]]) -> Iterator[KeptKeys]:
    """The rows of a short text after the first eviction, all at once, each with the keys of its run."""
    (B, H, T, S), G = m.matrix, m.k.shape[1]
    cached = torch.zeros(B, G, T, S, dtype=torch.bool, device=m.device)
    first = T
    for rows, positions in runs:
        if positions.shape[-1] < rows.stop:
            first = min(first, rows.start)
            at = positions.unsqueeze(2).expand(-1, -1, rows.stop - rows.start, -1)
            cached[:, :, rows].scatter_(-1, at, True)
    if first == T:
        return
    rows = slice(first, T)
    allowed = m.mask.tile(rows, slice(0, S), m.matrix, device=m.device)
    chosen = cached[:, :, rows].repeat_interleave(H // G, 1) & allowed
    yield KeptKeys(rows, m.k, v, m.mask, (chosen == allowed).all(-1), chosen)


def _select(m: AttentionMap, v: Tensor, policy: Selection, budget: int) -> Iterator[KeptKeys]:
    size = min(policy.block, budget)  # a block that is larger than the budget would exceed it
    for rows in row_blocks(m):
        state = SelectionState(m, rows, size)
        scores, seen = _check_block_scores(policy, policy.score(state), state), state.allowed
        if size > 1:
            # The last block may be shorter.
            padded = torch.nn.functional.pad(seen, (0, -seen.shape[-1] % size))
            seen = padded.view(*padded.shape[:-1], -1, size).any(-1)
        scores = scores.masked_fill(~seen, -torch.inf)
        best = scores.topk(min(budget // size, scores.shape[-1]), sorted=False).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        chosen = chosen.repeat_interleave(size, -1)[..., : state.keys.stop] if size > 1 else chosen
        chosen = chosen & state.allowed
        yield KeptKeys(rows, m.k, v, m.mask, (chosen == state.allowed).all(-1), chosen)


def _under_mask(m: AttentionMap, v: Tensor, mask: Mask) -> KeptKeys:
    return KeptKeys(slice(0, m.matrix[2]), m.k, v, mask, False)


def _compare(
    m: AttentionMap, whole: HeadOutputs, parts: Iterator[KeptKeys], concerned: Tensor
) -> MapRetention:
    """Attend to the keys of each part, and compare with the attention to all keys."""
    share = torch.ones(m.matrix[:3], dtype=torch.float64, device=m.device)
    error = torch.zeros_like(share)
    for kept in parts:
        rows, complete = kept.rows, kept.complete
        if complete is True:
            continue
        part = _attend_kept(m, kept)
        # The difference of two large numbers is exponentiated. A row that saw no key has −inf − −inf.
        held = (part.lse - whole.lse[:, :, rows]).clamp(max=0.0).exp().nan_to_num(0.0)
        change = relative_change(part.output, whole.output[:, :, rows])
        share[:, :, rows] = held if complete is False else held.masked_fill(complete, 1.0)
        error[:, :, rows] = change if complete is False else change.masked_fill(complete, 0.0)
    return MapRetention(share, error if whole.output.shape[-1] else None, concerned)


def relative_change(output: Tensor, true: Tensor) -> Tensor:
    """The norm of a change of outputs (B, H, T, E) over that of the true ones, (B, H, T), float64."""
    change = torch.linalg.vector_norm(output.double() - true.double(), dim=-1)
    # A row that saw no key has zeros before and after.
    return torch.where(change == 0, 0.0, change / torch.linalg.vector_norm(true.double(), dim=-1))


def _attend_kept(m: AttentionMap, kept: KeptKeys) -> HeadOutputs:
    """The attention of some rows to the keys that are kept."""
    if kept.chosen is None:
        return _attend(m, kept.rows, kept.k, kept.v, kept.mask)
    return _attend_chosen(m, kept.rows, kept.v, kept.chosen)


@torch.no_grad()
def _attend_chosen(m: AttentionMap, rows: slice, v: Tensor, chosen: Tensor) -> HeadOutputs:
    """The attention of a few rows to the keys that each has chosen, (B, H, rows, keys), from their scores.

    The rows are so few that all their scores fit in memory; kernels would read the choice as a large mask.
    """
    keys = slice(0, chosen.shape[-1])
    # A GPU computes float64 slowly, and only heads with large scores need it.
    exact = m.device.type == "cpu" or bool(m.precise.large.any())
    dtype = torch.float64 if exact else torch.float32
    scores = tile_scores(m, grid(rows, keys, m.matrix, m.device), dtype).masked_fill_(~chosen, -torch.inf)
    lse = scores.logsumexp(-1)  # (B, H, rows)
    B, G, _, E = v.shape
    if not E:  # without values nobody asks for the output, and exp of every score takes as long as all else
        return HeadOutputs(lse.new_zeros(*lse.shape, 0), lse.double())
    weights = scores.sub_(finite_lse(lse).unsqueeze(-1)).exp_()
    output = (weights.view(B, G, -1, keys.stop) @ v[:, :, keys].to(dtype)).view(*lse.shape, E)
    return HeadOutputs(output if m.sinks is None else output * _held(lse, m.sinks), lse.double())


def _held(lse: Tensor, sinks: Tensor) -> Tensor:
    """The share (B, H, rows, 1) that sink logits (H,) leave to keys with the log-sum-exp `lse`."""
    return (lse - torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])).exp().unsqueeze(-1)


@torch.no_grad()
def _attend(m: AttentionMap, rows: slice, k: Tensor, v: Tensor, mask: Mask) -> HeadOutputs:
    """The attention of some rows to keys, each head in the precision that its scores need.

    Sink logits take their share of the output, but the lse is that of the keys.
    """
    B, H, _, _ = m.matrix
    n, width = rows.stop - rows.start, v.shape[-1]
    # cuDNN's kernel gives no lse beside values of width 0 (PyTorch 2.11).
    v = v if width else k
    lses = torch.empty(B, H, n, dtype=torch.float64, device=m.device)
    outputs: Tensor | None = None
    for batch, heads, dtype in _head_dtypes(m, v):
        output, lse = attend(
            m.q[batch, heads, rows].to(dtype),
            select_kv_heads(k[batch], heads, H).to(dtype),
            select_kv_heads(v[batch], heads, H).to(dtype),
            mask=mask.select(batch, heads),
            scale=m.scale,
            softcap=m.softcap,
            return_lse=True,
        )
        lses[batch, heads] = lse.double()
        if m.sinks is not None:
            # Not `sinks=` of attend: the lse of the keys alone would then be a difference of two numbers.
            output = output * _held(lse.double(), m.sinks[heads]).to(output.dtype)
        if output.shape[:2] == (B, H):  # all heads at once, as they usually are
            return HeadOutputs(output[..., :width], lses)
        if outputs is None:
            outputs = torch.empty(B, H, n, width, dtype=torch.float64, device=m.device)
        outputs[batch, heads] = output[..., :width].double()
    assert outputs is not None
    return HeadOutputs(outputs, lses)


def _head_dtypes(m: AttentionMap, v: Tensor) -> Iterator[tuple[slice, slice, torch.dtype]]:
    """The sequences and heads that are computed together, and the dtype that they need."""
    dtype = torch.promote_types(m.q.dtype, v.dtype)
    # The rounding of an lse in float32 is as large as all errors of eager code. A CPU has a kernel for
    # float64; a GPU has none, and heads with large scores alone are worth the tiles.
    if m.device.type == "cpu":
        yield slice(0, m.matrix[0]), slice(0, m.matrix[1]), torch.float64
        return
    for group in precision.head_groups(m):
        large = group.data.lse.dtype == torch.float64
        yield group.batch, group.heads, torch.float64 if large else dtype
