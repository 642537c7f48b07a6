"""Pieces of an attention matrix: the queries of one rank against the keys of another, merged.

Any backend computes a piece, with its row log-sum-exp. Pieces of the same rows are merged by it: each output
counts by exp(its lse − lse of all). The gradients of a piece are computed from the lse of the whole row, so
that pieces need nothing of each other. This file knows tensors and runs of positions; it does not know
processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.backends import tiled_attention
from regard.attention.backends.choice import choose, run
from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.triton import launch
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask, full
from regard.attention.masks.grid import one_block
from regard.attention.masks.named_masks import causal
from regard.attention.masks.views import Keys, Rows


class MatrixPiece(NamedTuple):
    """A run of rows that a rank holds against a run of keys that it has received."""

    rows: slice  # counted in the rank's queries
    keys: slice  # counted in the received keys
    mask: Mask

    def of(self, problem: AttentionProblem, k: Tensor, v: Tensor) -> AttentionProblem:
        """The attention of the piece, for a rank's problem and received keys and values."""
        return problem._replace(
            q=problem.q[:, :, self.rows],
            k=k[:, :, self.keys],
            v=v[:, :, self.keys],
            mask=self.mask,
            sinks=None,
        )


def pieces(
    mask: Mask, T: int, S: int, q_runs: Sequence[range], k_runs: Sequence[range]
) -> Iterator[MatrixPiece]:
    """The pieces in which something may be visible; `mask` is that of all T queries and S keys."""
    row = 0
    for queries in q_runs:
        key = 0
        for keys in k_runs:
            if len(queries) and len(keys):
                part = piece_mask(mask, T, S, queries, keys)
                if part is not None:
                    yield MatrixPiece(slice(row, row + len(queries)), slice(key, key + len(keys)), part)
            key += len(keys)
        row += len(queries)


def piece_mask(mask: Mask, T: int, S: int, queries: range, keys: range) -> Mask | None:
    """The mask of a run of queries and a run of keys, as simple as it can be; None if nothing is visible."""
    part = Keys(Rows(mask, queries.start, T), keys.start, S)
    t, s = len(queries), len(keys)
    some, every = part.block_bounds(one_block(t, s))
    if not bool(some.any()):
        return None
    if not part.biased and bool(every.all()):
        return full
    # PyTorch's fused kernels know this one.
    return causal if t == s and part.band(t, s) == causal.band(t, s) else part


class PartialOutput(NamedTuple):
    """The output and the row log-sum-exp of the keys so far."""

    output: Tensor  # (B, H, T, E) in the working dtype
    lse: Tensor  # (B, H, T) in float64, so that merging many pieces loses no digit of it

    @classmethod
    def empty(cls, problem: AttentionProblem) -> PartialOutput:
        """What a rank has before it has seen any key."""
        lse = problem.q.new_full(problem.q.shape[:3], -torch.inf, dtype=torch.float64)
        dtype = working_dtype(problem.q.dtype)
        return cls(problem.q.new_zeros(*lse.shape, problem.v.shape[-1], dtype=dtype), lse)

    def add_(self, piece: MatrixPiece, part: AttentionProblem, backend: str) -> None:
        """Compute a piece on a backend and merge it with what there is, in place."""
        output, lse = run(part, choose(part, backend), return_lse=True)
        assert lse is not None
        self.merge_(piece.rows, output, lse)

    def merge_(self, rows: slice, output: Tensor | None, lse: Tensor) -> None:
        """Merge more keys of some rows, in place; keys without an output have no values, as sink logits."""
        own_output, own_lse = self.output[:, :, rows], self.lse[:, :, rows]
        merged = torch.logaddexp(own_lse, lse.double())
        anchor = merged.masked_fill(merged == -torch.inf, 0.0)  # a row without any visible key so far
        own_share, share = (
            (x - anchor).exp_().to(own_output.dtype).unsqueeze(-1) for x in (own_lse, lse)
        )  # (B, H, rows, 1)
        own_output.mul_(own_share)
        if output is not None:
            own_output.add_(output * share)
        own_lse.copy_(merged)

    def add_sinks_(self, sinks: Tensor) -> None:
        """Merge the sink logits (H,), in place."""
        self.merge_(slice(None), None, sinks.double().view(-1, 1).expand_as(self.lse))


def piece_gradients(
    part: AttentionProblem, grad: Tensor, output: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a piece for its q, k and v, from the output and the lse of its whole rows."""
    dtype = working_dtype(part.q.dtype)
    if launch.unsupported_reason(part) is None:
        top, log_total = _two_parts(lse * math.log2(math.e), dtype)
        with torch.cuda.device_of(part.q):  # type: ignore[no-untyped-call]
            gradients = launch.backward(part, output, top.contiguous(), log_total.contiguous(), grad)
        return cast(tuple[Tensor, Tensor, Tensor], gradients[:3])
    top, log_total = _two_parts(lse, dtype)
    # In the working dtype, so that the sums over the pieces are rounded once.
    part = part._replace(q=part.q.to(dtype), k=part.k.to(dtype), v=part.v.to(dtype))
    return tiled_attention.backward(part, 0, grad, output, top, log_total.exp_())[:3]


def _two_parts(lse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A number in float64 as two of another dtype that add up to it; the second of −inf is 0."""
    first = lse.to(dtype)
    return first, (lse - first).nan_to_num_(0.0).to(dtype)


def sink_gradients(sinks: Tensor, grad: Tensor, output: Tensor, lse: Tensor) -> Tensor:
    """The gradient of the sink logits (H,): a sink has a weight and no value."""
    share = (sinks.double().view(-1, 1) - lse).exp().masked_fill_(lse == -torch.inf, 0.0)  # (B, H, T)
    delta = (grad.to(output.dtype) * output).sum(-1)
    return -(share * delta).sum((0, 2)).to(sinks.dtype)
