"""What attention on several processes gives if it is wrong in a known way, computed on one.

Each prediction follows the steps of a ring: every rank attends to the blocks of keys of all ranks, one after
the other, and merges the partial outputs by their log-sum-exp. This file knows no processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from regard.checker.oracle.question import Question

Prediction = tuple[str, Tensor]  # a mistake, of which there are several forms, or an order; and the output
Sources = Callable[[int, int], int]  # (rank, step) -> the rank whose block is used


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

    def block(self, rank: int, keys: int, values: int, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the partial output of one block and its log-sum-exp; zeros where nothing is visible."""
        scores = (self.q[rank] @ self.k[keys].mT * self.scale).masked_fill(~allowed, -torch.inf)
        output = torch.softmax(scores, -1).nan_to_num() @ self.v[values]
        return output, torch.logsumexp(scores, -1, keepdim=True)

    def attend(self, positions: Tensor, key_positions: Tensor, v: Tensor | None = None) -> Tensor:
        """Return attention of the whole sequence in which tokens stand at these positions."""
        q, k, own = self.whole
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(key_positions > positions[:, None], -torch.inf)
        return torch.softmax(scores, -1).nan_to_num() @ (own if v is None else v)


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Merge partial outputs, each weighted by its log-sum-exp."""
    lse = torch.stack([part[1] for part in parts])
    # A row that sees no key in any block has log-sum-exps of −inf alone, whose softmax is NaN.
    return (torch.softmax(lse, 0).nan_to_num() * torch.stack([part[0] for part in parts])).sum(0)


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

    def source(direction: int, delay: Callable[[int], int], rank: int, step: int) -> int:
        return (rank - direction * delay(step)) % inputs.n

    for direction, stale in product((1, -1), (lambda step: max(step - 1, 0), lambda step: 0)):
        at, wrong = partial(source, direction, lambda step: step), partial(source, direction, stale)
        for keys, values, mask in (
            (wrong, wrong, at),
            (wrong, wrong, wrong),
            (wrong, at, at),
            (at, wrong, at),
        ):
            yield _ring(inputs, keys, values, mask)


def _ring(inputs: RingInputs, keys: Sources, values: Sources, mask: Sources) -> Tensor:
    """Return the output of a ring whose steps read these blocks, under the mask of those."""
    outputs = []
    for rank in range(inputs.n):
        steps = [(keys(rank, s), values(rank, s), mask(rank, s)) for s in range(inputs.n)]
        outputs.append(_merge([inputs.block(rank, k, v, inputs.allowed(rank, m)) for k, v, m in steps]))
    return torch.cat(outputs, -2)


def _offsets(inputs: RingInputs) -> Iterator[Tensor]:
    """The mask takes a rank's tokens for the first, every block for its own, or others for earlier."""
    n, T = inputs.n, inputs.T
    own, every = inputs.allowed(0, 0), torch.ones(T, T, dtype=torch.bool)
    rules: list[Callable[[int, int], Tensor]] = [
        lambda rank, source: inputs.allowed(0, source),
        lambda rank, source: own,
        lambda rank, source: own if rank == source else every,
    ]
    for rule in rules:
        blocks = [[inputs.block(rank, s, s, rule(rank, s)) for s in range(n)] for rank in range(n)]
        yield torch.cat([_merge(parts) for parts in blocks], -2)
        # A merge that begins with a rank's own keys gives NaN if all of them are hidden.
        broken = [_merge(parts).masked_fill(parts[r][1].isinf(), torch.nan) for r, parts in enumerate(blocks)]
        yield torch.cat(broken, -2)


def _merges(inputs: RingInputs) -> Iterator[Tensor]:
    """The partial outputs are summed, and divided by all steps, by those that see a key, or not at all."""
    n = inputs.n
    sums, seen = [], []
    for rank in range(n):
        parts = [inputs.block(rank, s, s, inputs.allowed(rank, s)) for s in range(n)]
        sums.append(torch.stack([part[0] for part in parts]).sum(0))
        seen.append(torch.stack([part[1].isfinite() for part in parts]).sum(0))
    total, count = torch.cat(sums, -2), torch.cat(seen, -2)
    yield from (total / n, total / count, total)


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
