"""`ring_attend`: attention over the ranks of a process group, exact and with gradients.

In the forward pass the keys and values of every rank go round the ring once. In the backward pass they go
round again, with their gradients behind them, which come home complete. While a rank computes, the next keys
are on their way to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.backends.problem import AttentionProblem, prepare
from regard.attention.context_parallel.pieces import PartialOutput, piece_gradients, pieces, sink_gradients
from regard.attention.context_parallel.rows import ORDERS, check_order, find_runs, join_rows
from regard.attention.context_parallel.transfer import Ring
from regard.attention.inputs import as_batch_mask, working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.memo import remember
from regard.attention.tensors import FLOATS
from regard.support.override import ContextEntries


class RingCall(NamedTuple):
    """One call on a ring as a listener receives it: this rank's rows, and the keys of all ranks."""

    q: Tensor  # (B, H, rows of this rank, D)
    k: Tensor  # (B, G, S, D), in the order of their positions
    v: Tensor  # (B, G, S, E)
    output: Tensor  # (B, H, rows of this rank, E)
    lse: Tensor  # (B, H, rows of this rank)
    mask: Mask  # of the whole sequence
    scale: float
    softcap: float | None
    sinks: Tensor | None  # (H,)
    T: int  # queries of the whole sequence
    q_runs: list[range]  # the positions of this rank's queries
    k_runs: list[range]  # the positions of this rank's keys


ring_listeners: ContextEntries[Callable[[RingCall], None]] = ContextEntries("ring_listeners")
"""The functions that receive the calls on a ring which a context makes."""


class RankRows(NamedTuple):
    """Where the rows and the keys of every rank are in the whole sequence."""

    q_runs: list[list[range]]
    k_runs: list[list[range]]
    T: int  # queries of the whole sequence
    S: int  # keys of the whole sequence

    def key_shapes(self, problem: AttentionProblem) -> list[list[tuple[int, ...]]]:
        """The shapes of the keys and the values of each rank."""
        B, G, _, D = problem.k.shape
        lengths = [sum(map(len, runs)) for runs in self.k_runs]
        return [[(B, G, S, D), (B, G, S, problem.v.shape[-1])] for S in lengths]


def ring_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any,
    order: str = "contiguous",
    mask: Mask | Tensor | None = None,
    backend: str = "auto",
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries on the keys of all ranks: output and lse, shaped as q is.

    `settings` are the `scale`, `softcap`, `sinks` and `dropout` of `attend`.
    """
    ring = Ring.of(group)
    problem, rows = _agree(ring, q, k, v, order, mask, settings)
    inputs = problem.q, problem.k, problem.v, problem.sinks
    listeners = dict.fromkeys(ring_listeners.get())  # several captures may have added the same one
    blocks: dict[int, Sequence[Tensor]] | None = {} if listeners else None
    output, lse = RingAttention.apply(*inputs, problem, ring, rows, backend, blocks)  # type: ignore[no-untyped-call]
    if blocks is not None:
        with torch.no_grad():
            # The keys of all ranks, which have passed by.
            keys, values = (
                join_rows([blocks[rank][i] for rank in range(ring.size)], rows.k_runs) for i in (0, 1)
            )
            options = problem.mask, problem.scale, problem.softcap, problem.sinks
            tensors = problem.q.detach(), keys, values, output.detach(), lse
            call = RingCall(*tensors, *options, rows.T, rows.q_runs[ring.rank], rows.k_runs[ring.rank])
            for listener in listeners:
                listener(call)
    return output.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def _agree(
    ring: Ring,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: str,
    mask: Mask | Tensor | None,
    settings: dict[str, Any],
) -> tuple[AttentionProblem, RankRows]:
    """Check the arguments of all ranks: where one is wrong, every rank raises an error, and none waits."""
    error, problem = None, None
    try:
        check_order(order)
        problem = prepare(q, k, v, **settings)  # of this rank, without its mask
        whole_mask = as_batch_mask(mask, q)
        _check_supported(problem, whole_mask)
    except ValueError as refusal:
        error = refusal
    names = ("B", "H", "G", "D", "E", "dtype", "order", "mask, scale, softcap, sinks or need of gradients")
    numbers = [0] * (3 + len(names))
    if error is None and problem is not None:
        B, H, T, S = problem.matrix
        # A checksum of the mask's text: masks themselves cannot be compared without sending their tensors.
        text = f"{whole_mask} {problem.scale} {problem.softcap} {problem.sinks is None} {problem.needs_grad}"
        sizes = (B, H, problem.k.shape[1], q.shape[-1], v.shape[-1], FLOATS.index(q.dtype))
        numbers = [1, T, S, *sizes, ORDERS.index(order), zlib.crc32(text.encode())]
    # A rank whose arguments are wrong gathers as well, or the others would wait for it until the timeout.
    everyone = ring.gather(numbers, q.device if isinstance(q, Tensor) else torch.device("cpu"))
    if error is not None:
        raise error
    refusing = [rank for rank, (is_right, *_) in enumerate(everyone) if not is_right]
    if refusing:
        raise ValueError(f"group: rank {refusing[0]} refused its own arguments, so that no rank can go on")
    for name, values in zip(names, zip(*(numbers[3:] for numbers in everyone), strict=True), strict=True):
        if other := [rank for rank, value in enumerate(values) if value != values[0]]:
            got = f": {values[0]} and {values[other[0]]}" if len(name) == 1 else ""
            raise ValueError(
                f"group: expected the same {name} on all ranks, got others on rank 0 and rank {other[0]}{got}"
            )
    assert problem is not None
    _, T_of, S_of, *_ = zip(*everyone, strict=True)
    rows = RankRows(find_runs("q", T_of, order), find_runs("k", S_of, order), sum(T_of), sum(S_of))
    matrix = (*problem.q.shape[:2], rows.T, rows.S)
    # Checked after the gather, since the shape of the whole is known only then; every rank finds the same
    # error.
    whole_mask.check(matrix)
    return problem._replace(mask=whole_mask.simplified(matrix)), rows


def _check_supported(problem: AttentionProblem, mask: Mask) -> None:
    """Raise ValueError for what a ring does not compute."""
    if problem.dropout:
        raise ValueError(f"dropout: expected 0 with group=, got {problem.dropout}")
    if problem._replace(mask=mask).bias_needs_grad:
        raise ValueError(f"mask: expected one that needs no gradient with group=, got {mask}: pass .detach()")
    if problem.transformed or problem.q.is_meta:
        raise ValueError("group: expected tensors with values, got those of torch.func or the meta device")


class RingAttention(torch.autograd.Function):
    """The output and the lse of this rank's queries, with gradients for q, k, v and sinks."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        problem: AttentionProblem,
        ring: Ring,
        rows: RankRows,
        backend: str,
        blocks: dict[int, Sequence[Tensor]] | None,
    ) -> tuple[Tensor, Tensor]:
        problem = problem._replace(q=q, k=k, v=v, sinks=sinks)
        partial = PartialOutput.empty(problem)
        for source, (keys, values) in ring.circulate((k, v), rows.key_shapes(problem)):
            if blocks is not None:  # for those who listen
                blocks[source] = keys, values
            q_runs, k_runs = rows.q_runs[ring.rank], rows.k_runs[source]
            for piece in pieces(problem.mask, rows.T, rows.S, q_runs, k_runs):
                partial.add_(piece, piece.of(problem, keys, values), backend)
        if sinks is not None:
            partial.add_sinks_(sinks)
        ctx.save_for_backward(q, k, v, sinks, *partial)
        ctx.ring, ctx.rows, ctx.check_mask = ring, rows, remember(problem.mask)
        # Empty slices keep dtype and device without keeping the tensors alive.
        ctx.problem = problem._replace(q=q[:0], k=k[:0], v=v[:0], sinks=None)
        lse = partial.lse.to(partial.output.dtype)
        ctx.mark_non_differentiable(lse)
        # The backward pass subtracts numbers that are computed from the output: it needs all its digits.
        return partial.output.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        ctx.check_mask()
        q, k, v, sinks, output, lse = ctx.saved_tensors
        ring, rows = ctx.ring, ctx.rows
        problem = ctx.problem._replace(q=q, k=k, v=v)
        dtype = working_dtype(q.dtype)
        shapes = rows.key_shapes(problem)
        dq, arriving = torch.zeros_like(q, dtype=dtype), None
        for source, (keys, values) in ring.circulate((k, v), shapes):
            # The gradients of these keys, on top of those that the ranks before have computed.
            dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (keys, values))
            for piece in pieces(problem.mask, rows.T, rows.S, rows.q_runs[ring.rank], rows.k_runs[source]):
                at, to = piece.rows, piece.keys
                rows_of_piece = (x[:, :, at] for x in (grad, output, lse))
                piece_dq, piece_dk, piece_dv = piece_gradients(
                    piece.of(problem, keys, values), *rows_of_piece
                )
                dq[:, :, at] += piece_dq
                dk[:, :, to] += piece_dk
                dv[:, :, to] += piece_dv
            if arriving is not None:
                for own, received in zip((dk, dv), arriving.wait(), strict=True):
                    own += received
            if ring.size > 1:
                arriving = ring.pass_on((dk, dv), shapes[source - 1])
        if arriving is not None:  # the last ones are this rank's own
            dk, dv = arriving.wait()
        sinks_grad = None if sinks is None else sink_gradients(sinks, grad, output, lse)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), sinks_grad, None, None, None, None, None
