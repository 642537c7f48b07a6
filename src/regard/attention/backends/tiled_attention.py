"""The "tiled" backend: attention tile by tile in plain PyTorch, the algorithm of FlashAttention on any
device.

A block of queries visits the keys a block at a time and keeps, for every query,

    top      the greatest score so far
    total    the sum of exp(score − top) so far
    output   the sum of exp(score − top) · value so far

When a later block holds a greater score, both sums are multiplied by exp(old top − new top). At the end the
output is divided by the total, which completes the softmax without ever holding a row of it. The backward
pass recomputes each tile from q, k, top and total; their log-sum-exp would lose digits of a large score.
Memory grows with T, not with T².
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.tiles import exponentials, fold, parts, scale_queries, score, visits
from regard.attention.inputs import working_dtype
from regard.attention.masks.memo import remember


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, E) and the row log-sum-exp (B, H, T)."""
    # From PyTorch's global generator, so that torch.manual_seed repeats the dropout.
    seed = int(torch.randint(2**62, (1,), device="cpu")) if problem.dropout else 0
    p = problem
    # Products of half-precision inputs are computed in float32, which autocast would undo.
    with torch.autocast(p.q.device.type, enabled=False):
        if not p.needs_grad:
            return forward(p, seed)
        output, lse = Tiled.apply(p.q, p.k, p.v, p.sinks, p, seed)  # type: ignore[no-untyped-call]
        return output, lse


def forward(problem: AttentionProblem, seed: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Output and lse without gradients, computed in `dtype`, or in the working dtype if None."""
    output, top, total = online_softmax(problem, seed, dtype, problem.q.dtype)
    return output, top + total.log_()  # −inf where no key is visible


def online_softmax(
    problem: AttentionProblem,
    seed: int,
    dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output (B, H, T, E), and of each row the greatest score and the total (B, H, T).

    All are computed in `dtype`, by default the working dtype, and the output is stored in `output_dtype`, by
    default the same.
    """
    B, H, T, _ = problem.matrix
    E = problem.v.shape[-1]
    dtype = dtype or working_dtype(problem.q.dtype)
    output = problem.q.new_empty(B, H, T, E, dtype=output_dtype or dtype)
    tops, totals = problem.q.new_empty(2, B, H, T, dtype=dtype)
    for n, (batch, heads, _, part) in enumerate(parts(problem, dtype)):
        b, h = part.q.shape[:2]
        G = part.k.shape[1]
        for rows, columns in visits(part):
            q = fold(scale_queries(part, rows), G)  # (N, M, D)
            top = q.new_full((*q.shape[:2], 1), -torch.inf)
            total = torch.zeros_like(top)
            sum_ = q.new_zeros(*q.shape[:2], E)
            for column in columns:
                weights, _, _, _, v = score(part, q, rows, column)
                new_top = torch.maximum(top, weights.amax(-1, keepdim=True))
                # A query that has seen no key yet has top −inf; its weights must be 0, not NaN.
                anchor = new_top.clamp(min=torch.finfo(new_top.dtype).min)
                exponentials(weights.sub_(anchor), out=weights)
                shrink = (top - anchor).exp_()
                total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
                if problem.dropout:
                    weights.mul_(dropout_factors(problem.dropout, seed, n, rows, column.keys, weights))
                sum_.mul_(shrink).baddbmm_(weights, v)
                top = new_top
            if part.sinks is not None:
                sink = fold(part.sinks.view(1, -1, 1, 1).expand(b, h, rows.stop - rows.start, 1), G)
                new_top = torch.maximum(top, sink)
                anchor = new_top.clamp(min=torch.finfo(new_top.dtype).min)
                shrink = (top - anchor).exp_()
                total.mul_(shrink).add_((sink - anchor).exp_())
                sum_.mul_(shrink)
                top = new_top
            R = rows.stop - rows.start
            tops[batch, heads, rows], totals[batch, heads, rows] = (x.view(b, h, R) for x in (top, total))
            # A query that sees no key has total 0 and sum 0: the division by 1 gives the zeros that `attend`
            # promises.
            output[batch, heads, rows] = sum_.div_(total.masked_fill(total == 0, 1.0)).view(b, h, R, E)
    return output, tops, totals


class Tiled(torch.autograd.Function):
    """`online_softmax` with gradients for q, k, v and sinks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, problem: AttentionProblem, seed: int
    ) -> tuple[Tensor, Tensor]:
        output, top, total = online_softmax(problem._replace(q=q, k=k, v=v, sinks=sinks), seed)
        ctx.save_for_backward(q, k, v, sinks, output, top, total)
        # Empty slices keep dtype, device and widths; the tensors themselves are saved by autograd, which can
        # free them.
        ctx.problem, ctx.seed = problem._replace(q=q[:0], k=k[:0], v=v[:0], sinks=None), seed
        ctx.check_mask = remember(problem.mask)
        lse = top + total.log()
        ctx.mark_non_differentiable(lse)
        # The backward pass subtracts numbers that are computed from the output: it needs all its digits.
        return output.to(q.dtype), lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        ctx.check_mask()
        q, k, v, sinks, output, top, total = ctx.saved_tensors
        problem = ctx.problem._replace(q=q, k=k, v=v, sinks=sinks)
        return *backward(problem, ctx.seed, grad, output, top, total), None, None


def backward(
    problem: AttentionProblem, seed: int, grad: Tensor, output: Tensor, top: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and sinks. Each tile is recomputed as exp(score − top) / total."""
    dq, dk, dv = (torch.empty_like(x) for x in (problem.q, problem.k, problem.v))
    # The gradient of softmax subtracts the weighted mean of the weights' gradient from every entry of a row.
    delta = (grad.to(top.dtype) * output).sum(-1)  # (B, H, T)
    empty = top == -torch.inf
    # −inf − −inf is NaN for the rows that see no key; their weights are 0 by exp(−inf) alone.
    top, inverse = top.masked_fill(empty, 0.0), total.masked_fill(empty, 1.0).reciprocal_()
    for n, (batch, heads, groups, part) in enumerate(parts(problem)):
        b, h, _, D = part.q.shape
        G = part.k.shape[1]
        part_dk, part_dv = torch.zeros_like(part.k), torch.zeros_like(part.v)
        for rows, columns in visits(part):
            q = fold(scale_queries(part, rows), G)  # (N, M, D)
            do = fold(grad[batch, heads, rows].to(q.dtype), G)  # (N, M, E)
            row_top, row_inverse, row_delta = (
                fold(x[batch, heads, rows, None], G) for x in (top, inverse, delta)
            )
            part_dq = torch.zeros_like(q)
            for column in columns:
                weights, tanh, seen_q, k, v = score(part, q, rows, column, keep_tanh=True)
                exponentials(weights.sub_(row_top), out=weights).mul_(row_inverse)  # (N, M, C)
                ds = torch.bmm(do, v.mT)
                dropped = weights
                if problem.dropout:
                    keep = dropout_factors(problem.dropout, seed, n, rows, column.keys, weights)
                    dropped = weights * keep
                    ds.mul_(keep)
                part_dv[:, :, column.keys] += torch.bmm(dropped.mT, do).view(b, G, -1, v.shape[-1])
                ds.sub_(row_delta).mul_(weights)
                if tanh is not None:
                    ds.mul_(1.0 - tanh).mul_(tanh.add_(1.0))  # 1 − tanh² would lose digits near 1
                part_dq.baddbmm_(ds, k)
                part_dk[:, :, column.keys] += torch.bmm(ds.mT, seen_q).view(b, G, -1, D)
            dq[batch, heads, rows] = part_dq.mul_(part.scale).view(b, h, -1, D).to(dq.dtype)
        if part.softcap is not None:
            part_dk.mul_(part.scale)  # which the queries do not hold then
        dk[batch, groups], dv[batch, groups] = part_dk.to(dk.dtype), part_dv.to(dv.dtype)
    if problem.sinks is None:
        return dq, dk, dv, None
    share = (problem.sinks.to(top.dtype).view(-1, 1) - top).exp_() * inverse  # (B, H, T)
    share = share.masked_fill_(empty, 0.0)
    return dq, dk, dv, -(share * delta).sum((0, 2)).to(problem.sinks.dtype)


def dropout_factors(p: float, seed: int, part: int, rows: slice, keys: slice, like: Tensor) -> Tensor:
    """The weights of a tile that dropout keeps, as factors 1 / (1 − p) or 0.

    The random numbers follow from the seed and the place of the tile, so the backward pass draws the same
    ones.
    """
    # 40 and 20 bits: rows and keys up to a million each, and any number of parts, give different places.
    place = (part << 40) + (rows.start << 20) + keys.start
    generator = torch.Generator(device=like.device).manual_seed((seed + place) % 2**63)
    keep = torch.empty_like(like).bernoulli_(1.0 - p, generator=generator)
    # p = 1 drops everything, and 0 / 0 would be NaN.
    return keep.div_(1.0 - p) if p < 1.0 else keep
