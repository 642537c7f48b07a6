"""The strongest examples of every head over a corpus, in bounded memory: excerpts, tokens, distances.

Of each window and head the strongest weight is an example, and the strongest examples of all windows are kept
with an excerpt of their window. Beside them stand the tokens from which and to which most of the strong
weights go, and their distances. Only the `KEYS` strongest keys of each query count. The first token of a
window is left out, as a query and as a key: it is where heads rest. What is kept of two parts of a corpus can
be merged, in the order of the parts. This file knows maps and ids; it does not know the texts of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from regard.maps import AttentionMap

KEYS = 6  # strongest keys of each query that count
BEFORE, AFTER = 16, 4  # tokens of an excerpt around its query
AROUND, AROUND_KEYS = 2, 3  # tokens to each side of the query's strongest keys, and of how many
LEAST_SHARE = 0.05  # of the query's attention, for a key around which tokens are kept
LENGTH = 1 + BEFORE + 1 + AFTER + AROUND_KEYS * (2 * AROUND + 1)
"""The most tokens of an excerpt: the window's first, those around the query, and those around its keys."""
TOKENS = 128  # tokens whose weight is added up, for queries and for keys: the heaviest so far
EDGES = (0, *(1 << n for n in range(21)))
"""The edges of the bins of distances: 0, 1, 2 and 3, 4 to 7, and so on."""
FIRST_QUERY = 16
"""The first query whose weights can be an example: one that sees few keys has strong weights on any."""
TENTHS = 10  # bins of the strongest weights of windows
UNIT = 1 << 40
"""Weights are added up as whole numbers of 1 / UNIT: a GPU adds in any order, and the bits stay the same."""


@dataclass
class LayerExamples:
    """The examples of the heads of one layer, strongest first; a window of −1 stands for none."""

    weight: Tensor
    """(H, E) float64: the strongest weight of the window."""
    window: Tensor
    """(H, E) int32: the number of the window in the corpus."""
    query: Tensor
    """(H, E) int16: the place in the excerpt of the query that has this weight."""
    positions: Tensor
    """(H, E, LENGTH) int32: the positions of the excerpt's tokens in the window, then −1."""
    ids: Tensor
    """(H, E, LENGTH) int32: the excerpt's tokens, then −1."""
    keys: Tensor
    """(H, E, LENGTH, KEYS) int16: the places of each token's strongest keys, −1 outside the excerpt."""
    weights: Tensor
    """(H, E, LENGTH, KEYS) float32: its weights on them."""
    distances: Tensor
    """(H, bins) float64: the weight at each distance; `EDGES` has the bins."""
    peaks: Tensor
    """(H, TENTHS) int64: in how many windows the strongest weight is in each tenth from 0 to 1."""
    query_ids: Tensor
    """(H, TOKENS) int32: the tokens that attend the most, then −1."""
    query_mass: Tensor
    """(H, TOKENS) float64: the weight of each."""
    key_ids: Tensor
    """(H, TOKENS) int32: the tokens that are attended to the most, then −1."""
    key_mass: Tensor
    """(H, TOKENS) float64: the weight on each."""

    @classmethod
    def empty(cls, heads: int, examples: int, device: torch.device | str = "cpu") -> Self:
        """What is kept of no window."""
        E, nothing = (heads, examples), -1
        return cls(
            weight=torch.zeros(E, dtype=torch.float64, device=device),
            window=torch.full(E, nothing, dtype=torch.int32, device=device),
            query=torch.zeros(E, dtype=torch.int16, device=device),
            positions=torch.full((*E, LENGTH), nothing, dtype=torch.int32, device=device),
            ids=torch.full((*E, LENGTH), nothing, dtype=torch.int32, device=device),
            keys=torch.full((*E, LENGTH, KEYS), nothing, dtype=torch.int16, device=device),
            weights=torch.zeros(*E, LENGTH, KEYS, device=device),
            distances=torch.zeros(heads, len(EDGES) - 1, dtype=torch.float64, device=device),
            peaks=torch.zeros(heads, TENTHS, dtype=torch.int64, device=device),
            query_ids=torch.full((heads, TOKENS), nothing, dtype=torch.int32, device=device),
            query_mass=torch.zeros(heads, TOKENS, dtype=torch.float64, device=device),
            key_ids=torch.full((heads, TOKENS), nothing, dtype=torch.int32, device=device),
            key_mass=torch.zeros(heads, TOKENS, dtype=torch.float64, device=device),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def split(self, layers: int) -> list[LayerExamples]:
        """The examples of each of so many layers, whose heads lie one layer after another, on the CPU."""
        parts = [x.cpu().chunk(layers) for x in self.tensors.values()]
        return [LayerExamples(*(x.contiguous() for x in layer)) for layer in zip(*parts, strict=True)]

    def check(self, heads: int, examples: int) -> None:
        """Raise ValueError unless the tensors are those of so many heads and examples, with sound values."""
        for name, x in LayerExamples.empty(heads, examples).tensors.items():
            own = getattr(self, name)
            if own.shape != x.shape or own.dtype != x.dtype:
                raise ValueError(
                    f"{name}: expected {tuple(x.shape)} {x.dtype} for {heads} heads, "
                    f"got {tuple(own.shape)} {own.dtype}"
                )
        limits = {"query": (0, LENGTH - 1), "keys": (-1, LENGTH - 1), "weight": (0, 2), "weights": (0, 2)}
        for name, x in self.tensors.items():
            least, most = limits.get(name, (-1 if x.dtype == torch.int32 else 0, torch.inf))
            if x.numel() and not (x.isfinite().all() and x.min() >= least and x.max() <= most):
                raise ValueError(f"{name}: expected finite numbers from {least} to {most}")
        before, after = self.positions[..., :-1], self.positions[..., 1:]
        if not bool((((after > before) & (before >= 0)) | (after == -1)).all()):
            raise ValueError("positions: expected increasing positions, then -1")
        inside = self.positions >= 0
        if not bool(inside.gather(2, self.query[..., None].long())[..., 0][self.window >= 0].all()):
            raise ValueError("query: expected the place of a token of the excerpt")
        keys = self.keys.flatten(2).long()
        if not bool(inside.gather(2, keys.clamp(min=0))[keys >= 0].all()):
            raise ValueError("keys: expected places of tokens of the excerpt")

    def __add__(self, later: LayerExamples) -> LayerExamples:
        """What is kept of two parts of a corpus, of which `later` is the second."""
        E = self.weight.shape[1]
        # A stable order: of equal weights the earlier one stays.
        order = torch.cat([self.weight, later.weight], 1).argsort(dim=1, descending=True, stable=True)[:, :E]
        rows = torch.arange(len(order), device="cpu")[:, None]
        names = ("weight", "window", "query", "positions", "ids", "keys", "weights")
        examples = {n: torch.cat([getattr(self, n), getattr(later, n)], 1)[rows, order] for n in names}
        query_ids, query_mass = _add_tokens(
            self.query_ids, self.query_mass, later.query_ids, later.query_mass
        )
        key_ids, key_mass = _add_tokens(self.key_ids, self.key_mass, later.key_ids, later.key_mass)
        return LayerExamples(
            **examples,
            distances=self.distances + later.distances,
            peaks=self.peaks + later.peaks,
            query_ids=query_ids,
            query_mass=query_mass,
            key_ids=key_ids,
            key_mass=key_mass,
        )


def add_examples(first: Sequence[LayerExamples], later: Sequence[LayerExamples]) -> list[LayerExamples]:
    """What is kept of two parts of a corpus, layer by layer."""
    return [a + b for a, b in zip(first, later, strict=True)]


@torch.no_grad()
def collect_examples(m: AttentionMap, ids: Tensor, first_window: int, examples: int) -> LayerExamples:
    """What is kept of a batch of windows.

    Arguments:
        m: the map of a layer, (B, H, T, S). Nothing is kept of one whose keys are not the windows' tokens.
        ids: the tokens of the windows, (B, T).
        first_window: the number of the first window in the corpus.
        examples: how many examples to keep of each head.
    """
    B, H, T, S = m.matrix
    device = m.device
    kept = LayerExamples.empty(H, examples, device)
    # Cross-attention, or a layer of other tokens: its positions name no tokens of the window.
    if T != S or ids.shape != (B, T) or T < 2:
        return kept
    ids = ids.to(device)
    top = m.topk(min(KEYS, S))
    room = (0, KEYS - top.values.shape[-1])
    keys = torch.nn.functional.pad(top.indices, room, value=-1)  # (B, H, T, KEYS)
    weights = torch.nn.functional.pad(top.values.double(), room).masked_fill_(keys < 0, 0.0)
    # Key 0 is the first token, and −1 stands for none.
    mass = weights.masked_fill(keys <= 0, 0.0)
    mass[:, :, 0] = 0.0
    # Distances, and the tokens on both sides.
    units = (mass * UNIT).round_().long()
    distance = (torch.arange(T, device=device)[:, None] - keys).abs()
    bins = torch.bucketize(distance, torch.tensor(EDGES[1:-1], device=device), right=True)
    by_distance = units.new_zeros(B, H, len(EDGES) - 1).scatter_add_(2, bins.flatten(2), units.flatten(2))
    kept.distances = by_distance.sum(0).double() / UNIT
    received = units.new_zeros(B, H, T).scatter_add_(2, keys.clamp(min=0).flatten(2), units.flatten(2))
    tokens, place = torch.unique(ids, return_inverse=True)
    kept.query_ids, kept.query_mass = _tally(tokens, place, units.sum(-1))
    kept.key_ids, kept.key_mass = _tally(tokens, place, received)
    # The strongest weight of each window; of equal ones the first.
    # Of a window of fewer than 32 tokens, the second half counts.
    mass[:, :, : min(FIRST_QUERY, T // 2)] = 0.0
    flat = mass.flatten(2)  # (B, H, T * KEYS)
    peak = flat.amax(-1)  # (B, H)
    at = torch.arange(flat.shape[-1], device=device).where(flat == peak[..., None], flat.shape[-1]).amin(-1)
    tenths = (peak * TENTHS).long().clamp(0, TENTHS - 1).T  # (H, B)
    kept.peaks.scatter_add_(1, tenths, (peak.T > 0).long())
    strongest, windows = peak.T.sort(dim=1, descending=True, stable=True)
    n = min(examples, B)
    strongest, windows = strongest[:, :n], windows[:, :n]  # (H, n)
    query = (at // KEYS).T.gather(1, windows)
    _cut_excerpts(kept, n, ids, keys, weights, windows, query)
    kept.weight[:, :n] = strongest
    kept.window[:, :n] = (windows + first_window).int()
    for name in ("window", "positions", "ids", "keys"):  # a window without any such weight is no example
        getattr(kept, name)[:, :n][strongest <= 0] = -1
    kept.weights[:, :n][strongest <= 0] = 0
    kept.query[:, :n][strongest <= 0] = 0
    return kept


def _cut_excerpts(
    kept: LayerExamples, n: int, ids: Tensor, keys: Tensor, weights: Tensor, windows: Tensor, query: Tensor
) -> None:
    """Fill in the excerpts of the first n examples: their tokens and the weights among them."""
    H, T = len(windows), ids.shape[1]
    rows = torch.arange(H, device=ids.device)[:, None]
    # The query's strongest keys: the example's own, and others that have a share of the attention.
    own, share = (x[windows, rows, query][..., :AROUND_KEYS] for x in (keys, weights))  # (H, n, AROUND_KEYS)
    strongest = share.masked_fill(own <= 0, 0.0).amax(-1, keepdim=True)
    own = own.masked_fill((share < LEAST_SHARE) & (share < strongest), -1)
    near = own[..., None] + torch.arange(-AROUND, AROUND + 1, device=ids.device)
    near = near.masked_fill(own[..., None] < 0, -1).flatten(2)
    about = query[..., None] + torch.arange(-BEFORE, AFTER + 1, device=ids.device)
    positions = torch.cat(
        [torch.zeros(H, n, 1, dtype=torch.long, device=ids.device), about, near], 2
    )  # (H, n, LENGTH)
    # Each position once, in order; T stands for none.
    # T sorts after every position, so that what is missing ends up at the end.
    positions = positions.masked_fill((positions < 0) | (positions >= T), T).sort(-1).values
    again = torch.zeros_like(positions, dtype=torch.bool)
    again[..., 1:] = positions[..., 1:] == positions[..., :-1]
    positions = positions.masked_fill(again, T).sort(-1).values
    inside, at = positions < T, positions.clamp(max=T - 1)
    kept.positions[:, :n] = positions.where(inside, -1).int()
    kept.ids[:, :n] = ids[windows[..., None], at].where(inside, -1).int()
    kept.query[:, :n] = torch.searchsorted(positions, query[..., None])[..., 0].short()
    # The places of each token's strongest keys in the excerpt.
    where = (windows[..., None], rows[..., None], at)
    found = keys[where].flatten(2)  # (H, n, LENGTH * KEYS)
    place = torch.searchsorted(positions, found.contiguous()).clamp(max=LENGTH - 1)
    here = (positions.gather(2, place) == found) & inside[..., None].expand(*inside.shape, KEYS).flatten(2)
    shape = (H, n, LENGTH, KEYS)
    kept.keys[:, :n] = place.where(here, -1).view(shape).short()
    kept.weights[:, :n] = weights[where].float() * here.view(shape)


def _tally(tokens: Tensor, place: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """The heaviest tokens of each head, and their mass, from the mass (B, H, T) of each position.

    `tokens` (n,) are those that occur, and `place` (B, T) says which of them stands where.
    """
    of_heads = units.transpose(0, 1).flatten(1)  # (H, B * T)
    sums = units.new_zeros(len(of_heads), len(tokens)).index_add_(1, place.flatten(), of_heads)
    return _heaviest(tokens.int().expand(len(of_heads), -1), sums.double() / UNIT)


def _heaviest(ids: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The `TOKENS` heaviest of tokens (H, n), padded with −1; of equal ones the first."""
    room = (0, max(0, TOKENS - mass.shape[1]))
    mass, order = torch.nn.functional.pad(mass, room).sort(dim=1, descending=True, stable=True)
    ids = torch.nn.functional.pad(ids, room, value=-1).gather(1, order)[:, :TOKENS]
    mass = mass[:, :TOKENS]
    return ids.masked_fill(mass <= 0, -1), mass.contiguous()


def _add_tokens(ids: Tensor, mass: Tensor, later_ids: Tensor, later_mass: Tensor) -> tuple[Tensor, Tensor]:
    """The heaviest tokens of two lists; a token occurs once in each."""
    # stable, as everything here: the result is the same to the last bit for any number of processes.
    both, order = torch.cat([ids, later_ids], 1).sort(dim=1, stable=True)
    sums = torch.cat([mass, later_mass], 1).gather(1, order)
    same = both[:, 1:] == both[:, :-1]
    sums[:, :-1] += sums[:, 1:] * same
    sums[:, 1:].masked_fill_(same, 0.0)
    return _heaviest(both, sums)
