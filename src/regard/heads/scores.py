"""What each head does with a text: scores from its attention map and the tokens that it read.

Every score is a sum over some weights of the map: a diagonal, or the mass under a rule that is asked tile by
tile, so no T×T matrix is built. The null of a score is the same score of `uniform(map)`, which looks at all
it may see alike. This file knows maps and tokens; it does not know models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks import rule, window
from regard.attention.rules import Blocks, Grid, Mask
from regard.maps import AttentionMap, weights


class Scores(NamedTuple):
    """One number for each text and head, (B, H). NaN where a text gives no occasion."""

    previous_token: Tensor
    """Mean of A[q, q − 1]."""
    itself: Tensor
    """Mean of A[q, q]."""
    duplicate: Tensor
    """Mass on earlier copies of the query's own token, over the queries that have one."""
    induction: Tensor
    """Prefix matching: mass on what came after earlier copies, over the queries that have such a place."""
    sink: Tensor
    """The most that one key gets, on average over the queries from it on: above 0.3 it is a sink."""
    local: Tensor
    """Mass within the latest tokens, the query's own among them."""
    distance: Tensor
    """How many tokens back it looks, on average."""
    entropy: Tensor
    """In nats."""
    normalised_entropy: Tensor
    """Entropy divided by that of looking everywhere alike: from 0, one key, to 1, all that can be seen."""


def scores(map: AttentionMap, ids: Tensor, *, near: int = 8) -> Scores:
    """What the heads of a map (B, H, T, T) do with the tokens ids (B, T); `near` is what counts as local.

    >>> import regard
    >>> q = torch.zeros(1, 1, 6, 2)
    >>> found = scores(regard.weights(q, q, mask=regard.causal), torch.tensor([[5, 7, 9, 5, 7, 9]]))
    >>> round(float(found.induction), 4)  # each of the last three looks at one place of 4, 5 or 6
    0.2056
    """
    _check(map, ids)
    ids = ids.to(map.device)
    T = map.matrix[2]
    found = map.statistics()
    alike = uniform(map)
    places = torch.arange(T, device=map.device)
    # The last keys are seen by few queries, and a mean over few is chance: the first half can be sinks.
    shares = found.received / (T - places)  # (B, H, T)
    sees_choice = alike.lse > 1e-6  # one key leaves no choice
    relative = torch.where(sees_choice, found.entropy / alike.lse.clamp(min=1e-6), torch.nan)

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k < q) & (ids[b, k] == ids[b, q])

    def after_same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k < q) & (k > 0) & (ids[b, (k - 1).clamp(min=0)] == ids[b, q])

    return Scores(
        previous_token=map.diagonal(-1).mean(-1),
        itself=map.diagonal(0).mean(-1),
        duplicate=_mean_where(map, rule(same), alike),
        induction=_mean_where(map, rule(after_same), alike),
        sink=shares[..., : (T + 1) // 2].amax(-1),
        local=map.mass(window(near)).mean(-1),
        distance=found.distance.mean(-1),
        entropy=found.entropy.mean(-1),
        normalised_entropy=relative.nanmean(-1),
    )


def uniform(map: AttentionMap) -> AttentionMap:
    """The map of heads that may see the same and look at all of it alike: what scores are compared with."""
    B, H, T, S = map.matrix
    nothing = map.q.new_zeros(B, H, max(T, S), 1, dtype=map.dtype)
    sees = Sees(map.mask) if map.mask.biased else map.mask
    return weights(nothing[:, :, :T], nothing[:, :, :S], mask=sees)


def _mean_where(map: AttentionMap, places: Mask, alike: AttentionMap) -> Tensor:
    """The mass under a rule, over the queries that see such a place: those where even `alike` puts some."""
    has = alike.mass(places) > 0  # (B, H, T)
    mass = torch.where(has, map.mass(places), torch.nan)
    return mass.nanmean(-1)


def _check(map: AttentionMap, ids: Tensor) -> None:
    if map.ndim != 4 or map.shape[2] != map.shape[3]:
        raise ValueError(f"map: expected (B, H, T, T), a text looking at itself, got {tuple(map.shape)}")
    wanted = (map.shape[0], map.shape[2])
    if not isinstance(ids, Tensor) or tuple(ids.shape) != wanted or ids.dtype.is_floating_point:
        came = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids: expected whole numbers {wanted}, the tokens that were read, got {came}")


@dataclass(frozen=True, repr=False, eq=False)
class Sees(Mask):
    """What a mask lets see, without what it adds to the scores."""

    inner: Mask

    def allowed(self, at: Grid) -> Tensor:
        return self.inner.allowed(at)

    def bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        return self.inner.bounds(blocks)

    def narrowed(self, batch: slice, heads: slice) -> Mask:
        return Sees(self.inner.narrowed(batch, heads))

    def misfit(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.inner.misfit(B, H, T, S)

    def __repr__(self) -> str:
        return f"sees({self.inner})"
