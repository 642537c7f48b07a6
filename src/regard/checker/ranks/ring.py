"""What attention on several processes gives if it is wrong in a known way, computed on one.

In a ring every rank attends to the blocks of keys of all ranks, one after the other, and merges the partial
outputs by their log-sum-exp, which is attention to all of these blocks at once. This file knows no processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from regard.checker.oracle.question import Question

Prediction = tuple[str, Tensor]  # a mistake, of which there are several forms, or an order; and the output


class RingInputs:
    """The inputs of a question, cut into the blocks of n ranks, and the usual mask between two blocks."""

    def __init__(self, question: Question, n: int, scale: float | None) -> None:
        self.n, self.causal = n, question.causal
        self.scale = question.q.shape[-1] ** -0.5 if scale is None else scale
        H, G = question.q.shape[1], question.k.shape[1]
        k, v = (x.repeat_interleave(H // G, 1) for x in (question.k, question.v))
        self.whole = question.q, k, v
        self.q, self.k, self.v = (x.chunk(n, -2) for x in self.whole)
        self.T = question.q.shape[-2] // n

    def allowed(self, rank: int, source: int) -> Tensor:
        """Return which keys of a rank's block the queries of another may see: boolean (T/n, T/n)."""
        at = rank * self.T + torch.arange(self.T)[:, None]
        keys = source * self.T + torch.arange(self.T)
        return keys <= at if self.causal else torch.ones(self.T, self.T, dtype=torch.bool)

    def rows(self, rank: int, keys: list[int], values: list[int], allowed: list[Tensor]) -> Tensor:
        """Return the outputs of a rank that attends to these blocks; zeros where nothing is visible."""
        k, v = torch.cat([self.k[b] for b in keys], -2), torch.cat([self.v[b] for b in values], -2)
        scores = (self.q[rank] @ k.mT * self.scale).masked_fill(~torch.cat(allowed, -1), -torch.inf)
        return torch.softmax(scores, -1).nan_to_num() @ v

    def attend(self, positions: Tensor, key_positions: Tensor, v: Tensor | None = None) -> Tensor:
        """Return attention of the whole sequence in which tokens stand at these positions."""
        q, k, own = self.whole
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(key_positions > positions[:, None], -torch.inf)
        return torch.softmax(scores, -1).nan_to_num() @ (own if v is None else v)


def predict_mistakes(question: Question, n: int, scale: float | None) -> Iterator[Prediction]:
    """Yield the output of every form of every mistake of several processes."""
    inputs = RingInputs(question, n, scale)
    for name, forms in (
        ("causal-offset-by-rank", _offsets(inputs)),
        ("merge-without-lse", _merges(inputs)),
        ("gather-order", _gathers(inputs)),
        ("stale-ring-step", _stale_steps(inputs)),
    ):
        yield from ((name, output) for output in forms)


def predict_orders(question: Question, n: int, scale: float | None) -> Iterator[Prediction]:
    """Yield the outputs of causal attention that takes the ranks' tokens for zigzag or striped ones."""
    inputs = RingInputs(question, n, scale)
    T = inputs.T
    striped = torch.cat([torch.arange(T) * n + rank for rank in range(n)])
    yield "striped", inputs.attend(striped, striped)
    if T % 2 == 0:
        half = torch.arange(T // 2)
        chunks = [(rank, 2 * n - 1 - rank) for rank in range(n)]
        zigzag = torch.cat([chunk * (T // 2) + half for pair in chunks for chunk in pair])
        yield "zigzag", inputs.attend(zigzag, zigzag)


def _stale_steps(inputs: RingInputs) -> Iterator[Tensor]:
    """A step uses the keys, the values or both of the step before, or those of the first step always."""
    n = inputs.n
    steps = list(range(n))
    for direction, late in product((1, -1), ([0, *steps[:-1]], [0] * n)):
        # By rank, whose block is used at each step.
        at, wrong = (
            [[(rank - direction * s) % n for s in used] for rank in range(n)] for used in (steps, late)
        )
        for keys, values, mask in (
            (wrong, wrong, at),
            (wrong, wrong, wrong),
            (wrong, at, at),
            (at, wrong, at),
        ):
            allowed = [[inputs.allowed(rank, source) for source in mask[rank]] for rank in range(n)]
            yield torch.cat([inputs.rows(r, keys[r], values[r], allowed[r]) for r in range(n)], -2)


def _offsets(inputs: RingInputs) -> Iterator[Tensor]:
    """The mask takes a rank's tokens for the first, every block for its own, or others for earlier."""
    ranks, own = list(range(inputs.n)), inputs.allowed(0, 0)
    for allowed in (
        [[inputs.allowed(0, source) for source in ranks] for _ in ranks],
        [[own for _ in ranks] for _ in ranks],
        [[own if rank == source else torch.ones_like(own) for source in ranks] for rank in ranks],
    ):
        output = torch.cat([inputs.rows(rank, ranks, ranks, allowed[rank]) for rank in ranks], -2)
        yield output
        # A merge that begins with a rank's own keys gives NaN if all of them are hidden.
        visible = torch.cat([allowed[rank][rank].any(-1, keepdim=True) for rank in ranks])
        yield output.masked_fill(~visible, torch.nan)


def _merges(inputs: RingInputs) -> Iterator[Tensor]:
    """The partial outputs are summed, and divided by all steps, by those that see a key, or not at all."""
    ranks = range(inputs.n)
    allowed = [[inputs.allowed(rank, source) for source in ranks] for rank in ranks]
    outputs = [[inputs.rows(rank, [s], [s], [allowed[rank][s]]) for s in ranks] for rank in ranks]
    total = torch.cat([torch.stack(parts).sum(0) for parts in outputs], -2)
    count = torch.cat([torch.stack(masks).any(-1, keepdim=True).sum(0) for masks in allowed])
    yield from (total / inputs.n, total / count, total)


def _gathers(inputs: RingInputs) -> Iterator[Tensor]:
    """Blocks of tokens or of heads are joined in another order: before the mask, or in the output."""
    n, T = inputs.n, inputs.T
    inorder = torch.arange(n * T)
    right = inputs.attend(inorder, inorder)
    ranks = list(range(n))
    # Reversed, and rotated by any number.
    for order in [ranks[::-1], *(ranks[i:] + ranks[:i] for i in range(1, n))]:
        moved = inorder.view(n, T)[order].flatten()
        yield inputs.attend(moved, moved)
        yield inputs.attend(inorder, moved)
        yield inputs.attend(inorder, inorder, inputs.whole[2][..., moved, :])
        yield right[..., moved, :]
        yield _regroup_heads(inputs.attend(moved, moved)[..., moved, :], n, order)
        yield _regroup_heads(inputs.attend(moved, moved), n, order)
        yield _regroup_heads(right, n, order)
    mixed = inorder.view(n, T).mT.flatten()
    yield from (right[..., mixed, :], right[..., mixed.argsort(), :])
    heads = torch.arange(right.shape[1]).view(n, -1).mT.flatten()
    yield from (right[:, heads], right[:, heads.argsort()])


def _regroup_heads(output: Tensor, n: int, order: list[int]) -> Tensor:
    """Return an output whose blocks of H/n heads stand in another order."""
    B, H = output.shape[:2]
    return output.view(B, n, H // n, *output.shape[2:])[:, order].flatten(1, 2)
