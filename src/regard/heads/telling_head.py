"""The most telling head of a capture, found from a sample of queries: what a reader should see first.

A head that finds earlier copies of a token tells the most, then one that attends to the token before. If no
head does either, it is the head whose queries differ the most in what they attend to; a head that attends to
a sink, or to everything alike, differs in nothing. Only sampled rows are computed, so that it takes no longer
for a long text. Of a vision transformer it is the head whose CLS is the most selective among the patches:
what CLS attends to is what a reader sees first. This file knows maps, tokens and patches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.grid import grid
from regard.heads.labels import MARGIN, MIN_QUERIES, MIN_SCORES
from regard.maps import AttentionMap, LinearAttentionMap
from regard.pictures.patch_layout import PatchAxes

KINDS = ("induction", "duplicate", "previous_token")
SAMPLED = 32  # queries that are looked at, and as many that have an earlier copy
MAX_WEIGHTS = 1 << 21  # of a layer that are computed


class Candidate(NamedTuple):
    """A head and how telling it is: by the first kind of `KINDS` that it is of, then by its score."""

    rank: int  # 0 where it is of no kind
    score: float
    layer: int
    head: int


@torch.no_grad()
def find_telling_head(
    layers: Iterable[tuple[AttentionMap | LinearAttentionMap, Tensor | None]],
) -> tuple[int, int] | None:
    """Return the numbers of the layer and head to show first; None if there is no head.

    `layers` are the map (1, H, T, S) of each layer and the tokens (S,) of its keys, the last T of them the
    queries'; None where the tokens are not known, or the queries read another text.

    >>> import regard
    >>> q = torch.zeros(1, 2, 12, 12)
    >>> q[0, 1] = 30 * torch.eye(12).roll(-1, 1)  # head 1 attends to the key of the token before
    >>> k = torch.eye(12).roll(-2, 1).expand(1, 2, 12, 12)
    >>> m = regard.attention_map(q, k, mask=regard.causal, scale=1.0)
    >>> find_telling_head([(m, torch.arange(12))])
    (0, 1)
    """
    candidates: list[Candidate] = []
    for number, (m, tokens) in enumerate(layers):
        if not isinstance(m, LinearAttentionMap):  # its heads are compared with each other only
            candidates += _layer_candidates(number, m, tokens)
    best = max(candidates, default=None)
    return None if best is None else (best.layer, best.head)


@torch.no_grad()
def find_selective_head(
    layers: Iterable[tuple[AttentionMap | LinearAttentionMap, PatchAxes | None]],
) -> tuple[int, int] | None:
    """Return the layer and the head whose CLS is the most selective among patches; None if there is no CLS.

    `layers` are the map (1, H, T, S) of each layer, and what its queries and keys are. The measure is the
    distance of the weights on patches from their mean, so that neither uniform attention nor attention to
    registers alone is selective.
    """
    candidates: list[Candidate] = []
    for number, (m, axes) in enumerate(layers):
        patches = [] if axes is None else [s.first + i for s in axes.keys.spans for i in range(len(s.places))]
        if axes is None or not axes.queries.special or not patches:
            continue
        # In ViT and DINOv2, CLS comes first, before the registers.
        cls = torch.tensor([min(axes.queries.special)], device=m.device)
        weights = m.tile(cls, slice(0, m.matrix[3]))[0, :, 0, patches]  # (H, patches)
        distances = 0.5 * (weights - weights.mean(-1, keepdim=True)).abs().sum(-1)  # (H,)
        candidates += [Candidate(0, score, number, head) for head, score in enumerate(distances.tolist())]
    best = max(candidates, default=None)
    return None if best is None else (best.layer, best.head)


def expected_keys(kind: str, tokens: Tensor, queries: Tensor) -> Tensor:
    """Return where heads of a kind attend to: boolean (queries, S), for the positions of some queries.

    `tokens` (S,) are the ids of the keys.

    >>> expected_keys("induction", torch.tensor([5, 7, 9, 5]), torch.tensor([3])).tolist()
    [[False, True, False, False]]
    """
    at, keys = queries.view(-1, 1), torch.arange(len(tokens), device=tokens.device)
    if kind == "previous_token":
        return keys == at - 1
    copies = (tokens[at] == tokens) & (keys < at)
    if kind == "duplicate":
        return copies
    after = copies.roll(1, 1) & (keys < at)
    # roll brings the last column to the front.
    after[:, 0] = False
    return after


def _layer_candidates(number: int, m: AttentionMap, tokens: Tensor | None) -> list[Candidate]:
    """Return the heads of a layer with how telling they are."""
    _, H, T, S = m.matrix
    if not T or not S:
        return []
    tokens = None if tokens is None else tokens.to(m.device)
    rows = _sample_rows(T, S, H, m.first_position, tokens, m.device)
    weights = m.tile(rows, slice(0, S))[0]  # (H, rows, S)
    found = []
    if tokens is not None:
        allowed = m.mask.allowed(grid(rows, slice(0, S), m.matrix, m.device))
        visible = allowed.expand(-1, -1, len(rows), S)[0].to(weights.dtype)
        uniform = visible / visible.sum(-1, keepdim=True).clamp(min=1)  # (H or 1, rows, S)
        for rank, kind in enumerate(reversed(KINDS), start=1):
            expected = expected_keys(kind, tokens, rows + m.first_position).to(weights.dtype)  # (rows, S)
            mass, null = (torch.einsum("hrs,rs->hr", x, expected) for x in (weights, uniform))
            defined = null > 0
            count = defined.sum(-1)  # (H,) or (1,) where all heads have the same mask
            score = (mass * defined).sum(-1) / count
            above = score - null.sum(-1) / count
            clear = (count >= MIN_QUERIES) & (score >= MIN_SCORES[kind]) & (above >= MARGIN)
            heads = clear.nonzero().flatten().tolist()
            found += [Candidate(rank, float(above[head]), number, head) for head in heads]
    if found:
        return found
    # How much the rows differ: 0 for a sink alone, near 1 if no two queries attend to the same key.
    differences = 0.5 * (weights - weights.mean(1, keepdim=True)).abs().sum(-1).mean(-1)  # (H,)
    return [Candidate(0, score, number, head) for head, score in enumerate(differences.tolist())]


def _sample_rows(T: int, S: int, H: int, first: int, tokens: Tensor | None, device: torch.device) -> Tensor:
    """Return some rows, evenly spaced: of all queries, and of those whose token came before."""
    most = min(SAMPLED, max(4, MAX_WEIGHTS // (2 * H * S)))
    rows = [torch.linspace(0, T - 1, min(T, most), device=device).long()]
    if tokens is not None:
        seen_first = torch.full((int(tokens.max()) + 1,), S, device=device)
        positions = torch.arange(S, device=device)
        seen_first.scatter_reduce_(0, tokens, positions, "amin")
        # + 1: a copy right after the first one has no token in between that it could predict.
        copies = (seen_first[tokens] + 1 < positions).nonzero().flatten() - first
        copies = copies[copies >= 0]
        if len(copies):
            rows.append(
                copies[torch.linspace(0, len(copies) - 1, min(len(copies), most), device=device).long()]
            )
    together: Tensor = torch.unique(torch.cat(rows))
    return together
