"""What every query of every head does: each score as one number a query, with where it has an occasion.

A score of a head is a mean of these, whichever queries are taken together: a text, a block of it, a corpus.
Everything comes from one pass over the map (entropy, distance, what keys receive), a band beside the
diagonal, a few columns and the pairs of equal tokens; no T×S matrix is built.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.heads.equal_tokens import TokenBlock, blocks_of, pairs
from regard.heads.visibility import Visibility, sight
from regard.maps import AttentionMap
from regard.maps.index import Axes
from regard.maps.sweep import RowStatistics, first_position

NAMES = (
    "previous_token",
    "itself",
    "duplicate",
    "induction",
    "sink",
    "local",
    "distance",
    "entropy",
    "normalised_entropy",
    "eviction",
)
SINK = 0.3  # a key that gets more than this on average is a sink (Gu 2024)
SINK_QUERIES = 16  # what fewer give a key is chance: a head that looks at itself gives the last key all
NEAR = 8  # tokens that count as local, the query's own among them
KEPT = (4, 64)  # the cache policy that eviction judges: the first and the latest keys
LEFT = 1e-3  # of a row, beside the sink: less is not worth spreading over the row


class KnownStatistics(Protocol):
    """The statistics of a map (B, H, T, S), from `map.statistics()` or `map.summary(…)`."""

    @property
    def entropy(self) -> Tensor: ...
    @property
    def distance(self) -> Tensor: ...
    @property
    def received(self) -> Tensor: ...


class Options(NamedTuple):
    near: int = NEAR
    kept: tuple[int, int] = KEPT


class QueryScore(NamedTuple):
    """One score of every query: (B, H, T), or fewer heads where they do not differ, and which count."""

    values: Tensor
    counted: Tensor


class Text:
    """The tokens that a map was read from, with what the map's mask lets see: shared by layers alike.

    `ids` (B, S) are the tokens of the keys, the last T of them the queries', or None where there are none;
    `real`, boolean and shaped alike, says which are text and not padding. A `crossed` map looks from one text
    at another, so only what needs no common places has a meaning.
    """

    def __init__(
        self,
        map: AttentionMap,
        ids: Tensor | None,
        real: Tensor | None = None,
        *,
        crossed: bool = False,
        options: Options = Options(),  # noqa: B008 (immutable)
    ) -> None:
        _, _, T, S = map.matrix
        self.matrix, self.mask, self.device = map.matrix, map.mask, map.device
        self.options, self.given, self.asked = options, ids, crossed
        self.crossed = crossed or (ids is not None and ids.shape[1] != S) or (ids is None and T != S)
        self.ids = None if ids is None or self.crossed else ids.to(map.device)
        real = None if real is None or bool(real.all()) else real.to(map.device)
        self.first = first_position(map)
        self.real_keys = None if real is None or self.crossed else real  # (B, S)
        self.real = self._of_queries(real)  # (B, T)
        self.sight: Visibility = sight(map, self.real)
        self.null, _ = self._read(self.sight.alike, None)

    def _of_queries(self, real: Tensor | None) -> Tensor | None:
        T = self.matrix[2]
        if real is None or real.shape[1] == T:
            return real
        return None if self.crossed else real[:, self.first : self.first + T]

    def suits(self, map: AttentionMap, ids: Tensor | None, crossed: bool = False) -> bool:
        """Whether another map read the same and has the same shape and mask, so that this serves it too."""
        alike = map.matrix == self.matrix and map.mask == self.mask
        return alike and ids is self.given and crossed == self.asked

    def read(
        self, map: AttentionMap, known: KnownStatistics | None = None
    ) -> tuple[dict[str, QueryScore], Tensor]:
        """Every score that has a meaning, query by query, and the key (B, H) that gets most, −1 for none.

        `known` are the statistics of the map, if someone has them already.
        """
        return self._read(map, self.null, known)

    def _read(
        self, map: AttentionMap, null: dict[str, QueryScore] | None, known: KnownStatistics | None = None
    ) -> tuple[dict[str, QueryScore], Tensor]:
        map = self._silenced(map)
        if known is None or self.real is not None:  # padding has a part in what someone else has summed up
            known = map.statistics()
        found = RowStatistics(known.entropy, known.distance, known.received)
        keys, looks = self.sight.keys, self._looks()
        out: dict[str, QueryScore] = {}
        sink_key, column = self._sink(map, found)
        seen = columns(self.sight.alike, sink_key) > 0
        out["sink"] = QueryScore(column, seen & looks & (sink_key >= 0).unsqueeze(-1))
        out["entropy"] = QueryScore(found.entropy, looks)
        relative = found.entropy / keys.clamp(min=2).log()
        out["normalised_entropy"] = QueryScore(relative, looks & (keys > 1))  # one key leaves no choice
        if not self.crossed:
            self._add_places(map, found, null, out)
            self._add_tokens(map, null, out)
        return out, sink_key

    def _silenced(self, map: AttentionMap) -> AttentionMap:
        """A plain (B, H, T, S) map in which padded queries look at nothing, whatever they hold."""
        q, lse = map.q, map.lse
        if self.real is not None:
            q = q.masked_fill(~self.real[:, None, :, None], 0.0)
            lse = lse.masked_fill(~self.real[:, None], -torch.inf)
        known = map.precise if self.real is None else None
        return map.replaced(q=q, lse=lse, axes=Axes(), precise=known)

    def _looks(self) -> Tensor:
        """(B, h, T): the queries that are text and see something."""
        sees = self.sight.keys > 0
        return sees if self.real is None else sees & self.real[:, None]

    def places(self) -> Tensor:
        """(T,): where the queries stand among the keys."""
        return torch.arange(self.matrix[2], device=self.device) + self.first

    def _sink(self, map: AttentionMap, found: RowStatistics) -> tuple[Tensor, Tensor]:
        """The key that gets most on average over the queries that see it, −1 if none counts; its column."""
        queries = self.sight.queries
        texts = self._looks().sum(-1, keepdim=True)  # (B, h, 1)
        enough = (queries >= torch.clamp(texts // 2 + 1, max=SINK_QUERIES)) & (queries > 0)
        if self.real_keys is not None:
            enough = enough & self.real_keys[:, None]
        share = (found.received / queries.clamp(min=1)).masked_fill(~enough, -1.0)
        best, key = share.max(-1)  # (B, H)
        key = key.masked_fill(best < 0, -1)
        return key, columns(map, key)

    def _add_places(
        self,
        map: AttentionMap,
        found: RowStatistics,
        null: dict[str, QueryScore] | None,
        out: dict[str, QueryScore],
    ) -> None:
        looks, places = self._looks(), self.places()
        near, (first, latest) = self.options.near, self.options.kept
        band = beside_diagonal(map, self.first, near, latest)
        before = (places > 0).expand(looks.shape)
        if self.real_keys is not None:
            before = before & self.real_keys[:, None, (places - 1).clamp(min=0)]
        out["previous_token"] = QueryScore(band.previous, looks & before)
        out["itself"] = QueryScore(band.itself, looks)
        out["local"] = QueryScore(band.near, looks)
        out["distance"] = QueryScore(found.distance, looks)
        if self.sight.ahead:
            return  # what looks ahead has no cache that could forget
        lost = self.total(map) - band.latest
        for key in self.first_keys(first):  # (B,)
            beyond = key.view(-1, 1, 1) <= places - latest
            lost = lost - torch.where(beyond, columns(map, key.view(-1, 1)), 0.0)
        # Looking at all alike it loses whole keys, which tells a loss from rounding.
        forgets = looks & ((lost * self.sight.keys).round() > 0) if null is None else null["eviction"].counted
        out["eviction"] = QueryScore(lost.clamp(min=0.0), forgets)

    def total(self, map: AttentionMap) -> Tensor:
        """What the weights of a row sum to: 1, less what a learned sink takes."""
        if map.sinks is None:
            return torch.ones_like(map.lse)
        share = (map.sinks.double().view(-1, 1) - map.precise_lse()).exp()
        return 1.0 - share.to(map.dtype)

    def first_keys(self, n: int) -> list[Tensor]:
        """The first n keys of every text that are no padding, (B,) each."""
        B, _, _, S = self.matrix
        n = min(n, S)
        if self.real_keys is None:
            return [torch.full((B,), i, device=self.device) for i in range(n)]
        order = (~self.real_keys).byte().argsort(dim=1, stable=True)
        return list(order[:, :n].unbind(1))

    @cached_property
    def _blocks(self) -> list[list[TokenBlock]]:
        assert self.ids is not None
        _, H, T, _ = self.matrix
        real = [None] * len(self.ids) if self.real_keys is None else self.real_keys
        queries = range(self.first, self.first + T)
        return [blocks_of(text, known, queries, H) for text, known in zip(self.ids, real, strict=True)]

    def _add_tokens(
        self, map: AttentionMap, null: dict[str, QueryScore] | None, out: dict[str, QueryScore]
    ) -> None:
        if self.ids is None:
            return
        found = pairs(map, self.ids, self._blocks, self.first)
        for name, mass in (("duplicate", found.copies), ("induction", found.after)):
            # A query has an occasion where even looking everywhere alike puts something on such a place.
            has = mass > 0 if null is None else null[name].counted
            out[name] = QueryScore(mass, has)

    @cached_property
    def shuffled(self) -> Text | None:
        """The same text under shuffled labels: what tokens would have to do with attention by chance."""
        if self.ids is None:
            return None
        generator = torch.Generator().manual_seed(0)
        ids = self.ids.clone()
        for b in range(len(ids)):
            real = slice(None) if self.real_keys is None else self.real_keys[b]
            kept = ids[b, real]
            ids[b, real] = kept[torch.randperm(len(kept), generator=generator).to(kept.device)]
        other = copy.copy(self)
        other.__dict__.pop("_blocks", None)  # those of the labels before
        other.ids, other.null = ids, {}
        other._add_tokens(other._silenced(self.sight.alike), None, other.null)
        return other

    def read_tokens(self, map: AttentionMap) -> dict[str, QueryScore]:
        """Only the scores that depend on which tokens are equal."""
        out: dict[str, QueryScore] = {}
        self._add_tokens(self._silenced(map), self.null, out)
        return out


def columns(map: AttentionMap, keys: Tensor) -> Tensor:
    """The weights of all queries on one key for each text and head, keys (B, H or 1): (B, H, T)."""
    B, H, T, _ = map.matrix
    out = map.lse.new_zeros(B, max(H, keys.shape[1]), T)
    for key in sorted(set(keys.flatten().tolist())):
        if key >= 0:
            column = map.tile(slice(None), slice(key, key + 1))[..., 0]
            out = torch.where((keys == key).unsqueeze(-1), column, out)
    return out


class DiagonalMass(NamedTuple):
    """Sums of weights beside the diagonal, (B, H, T) each."""

    itself: Tensor
    previous: Tensor
    near: Tensor
    latest: Tensor


def beside_diagonal(map: AttentionMap, first: int, near: int, latest: int) -> DiagonalMass:
    """The weight on a query's own place, on the one before, and on the `near` and `latest` last places."""
    B, H, T, S = map.matrix
    reach = max(near, latest, 2)
    step = max(reach, 64)
    out = DiagonalMass(*(map.lse.new_zeros(B, H, T) for _ in range(4)))
    for i in range(0, T, step):
        rows = slice(i, min(i + step, T))
        keys = slice(max(0, first + i - reach + 1), max(0, min(S, first + rows.stop)))
        tile = map.tile(rows, keys)  # (B, H, rows, keys)
        back = torch.arange(rows.start + first, rows.stop + first, device=map.device).view(-1, 1)
        back = back - torch.arange(keys.start, keys.stop, device=map.device)  # how far back each key lies
        past = back >= 0
        parts = (back == 0, back == 1, past & (back < near), past & (back < latest))
        for total, chosen in zip(out, parts, strict=True):
            total[:, :, rows] = tile.where(chosen, 0.0).sum(-1)
    return out
