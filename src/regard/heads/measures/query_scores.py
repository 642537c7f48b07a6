"""Per-query scores: for every head and query, the value of each score, and for which queries it is defined.

The score of a head is the mean of these over some queries: those of a text, a block of it, or a corpus.
Everything comes from one pass over the map (entropy, distance, received attention), a band beside the
diagonal, a few columns, some rows and the pairs of equal tokens; no T×S matrix is built.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.heads.corpus_survey.tallies import MOST_TOKENS, Tallies
from regard.heads.measures.eviction import eviction_loss_from_sums
from regard.heads.measures.induction import TokenBlock, copy_mass, find_blocks
from regard.heads.measures.offsets import offset_sums, sample_rows, weights_at_offsets
from regard.heads.measures.patch_scores import PATCH_NAMES, patch_scores
from regard.heads.measures.sink import find_sink_keys
from regard.heads.measures.visibility import Visibility, find_visibility
from regard.maps import AttentionMap, LinearAttentionMap
from regard.maps.index import Axes
from regard.pictures.patch_layout import PatchAxes

NAMES = (
    "previous_token",
    "itself",
    "duplicate",
    "induction",
    "sink",
    "one_token",
    "fixed_offset",
    "local",
    "distance",
    "entropy",
    "normalised_entropy",
    "eviction",
    *PATCH_NAMES,
    "effective_length",  # of linear layers
)
NEAR = 8  # tokens that count as local, the query's own among them
POLICY = (4, 64)  # the cache policy of the eviction score: numbers of first and of latest keys that are kept


class KnownStatistics(Protocol):
    """The statistics of a map (B, H, T, S), from `m.statistics()` or `m.summary(…)`."""

    @property
    def entropy(self) -> Tensor: ...
    @property
    def distance(self) -> Tensor: ...
    @property
    def received(self) -> Tensor: ...


class Options(NamedTuple):
    """The settings of the scores "local" and "eviction"."""

    near: int = NEAR
    policy: tuple[int, int] = POLICY


class QueryScore(NamedTuple):
    """One score of every query, (B, H, T), or (B, 1, T) where heads do not differ."""

    values: Tensor
    defined: Tensor
    """The queries that count."""


class MapScores(NamedTuple):
    """What a map of a text was found to do."""

    scores: dict[str, QueryScore]
    """Every score that is defined, query by query."""
    sink_key: Tensor
    """(B, H): the sink key of every head, −1 for none."""
    positional: dict[str, QueryScore]
    """The scores of equal tokens that attention to the same distance, whatever is there, would have."""
    tallies: Tallies


class TextScorer:
    """Scores the maps of one text, or of a batch of texts, query by query.

    It holds what layers of the same shape and mask have in common: tokens, visible keys and baselines.
    `ids` (B, S) are the tokens of the keys, the last T of them the queries', or None where there are none;
    `is_token`, boolean and of the same shape, is False for padding. A `crossed` map attends from one text to
    another, so that only scores that compare no positions are defined. `patches` say what the tokens of a map
    among the patches of a picture are, which have scores of their own instead.
    """

    def __init__(
        self,
        m: AttentionMap | LinearAttentionMap,
        ids: Tensor | None,
        is_token: Tensor | None = None,
        *,
        crossed: bool = False,
        options: Options = Options(),  # noqa: B008 (immutable)
        patches: PatchAxes | None = None,
    ) -> None:
        _, _, T, S = m.matrix
        self.matrix, self.mask, self.device = m.matrix, m.mask, m.device
        self.options, self._arguments, self.patches = options, (ids, crossed, patches), patches
        self.crossed = (
            crossed
            or patches is not None
            or (ids is not None and ids.shape[1] != S)
            or (ids is None and T != S)
        )
        self.ids = None if ids is None or self.crossed else ids.to(m.device)
        is_token = None if is_token is None or bool(is_token.all()) else is_token.to(m.device)
        self.first_position = m.first_position
        self.is_token_key = None if is_token is None or self.crossed else is_token  # (B, S)
        self.is_token_query = self._select_queries(is_token)  # (B, T)
        self.visibility: Visibility = find_visibility(m, self.is_token_query)
        self.null = self._score(self.visibility.uniform, None).scores

    def _select_queries(self, is_token: Tensor | None) -> Tensor | None:
        """The part of is_token (B, S) or (B, T) that is of the queries, (B, T)."""
        T = self.matrix[2]
        if is_token is None or is_token.shape[1] == T:
            return is_token
        return None if self.crossed else is_token[:, self.first_position : self.first_position + T]

    def fits(
        self,
        m: AttentionMap | LinearAttentionMap,
        ids: Tensor | None,
        crossed: bool = False,
        patches: PatchAxes | None = None,
    ) -> bool:
        """Whether this can score another map of the same tokens: its shape, mask and device are the same."""
        ids_here, crossed_here, patches_here = self._arguments
        same = m.matrix == self.matrix and m.mask == self.mask and m.device == self.device
        return same and ids is ids_here and crossed == crossed_here and patches == patches_here

    def score(self, m: AttentionMap, statistics: KnownStatistics | None = None) -> MapScores:
        """Score a map; `statistics` are those of the map, if they are known already."""
        return self._score(m, self.null, statistics)

    def _score(
        self, m: AttentionMap, null: dict[str, QueryScore] | None, statistics: KnownStatistics | None = None
    ) -> MapScores:
        """The same; without `null` m is the map of uniform attention, which decides where scores count."""
        m = self._without_padding(m)
        if statistics is None or self.is_token_query is not None:  # known statistics include padding
            statistics = m.statistics()
        keys, active = self.visibility.keys, self._active_queries()
        sink_key = self._find_sink_keys(statistics)
        sees_sink = columns(self.visibility.uniform, sink_key) > 0
        relative = statistics.entropy / keys.clamp(min=2).log()
        scores = {
            "sink": QueryScore(columns(m, sink_key), sees_sink & active & (sink_key >= 0).unsqueeze(-1)),
            "entropy": QueryScore(statistics.entropy, active),
            "normalised_entropy": QueryScore(relative, active & (keys > 1)),  # one key leaves no choice
        }
        if self.patches is not None:
            for name, score in patch_scores(m, self.patches, active).items():
                scores[name] = QueryScore(*score)
        positional: dict[str, QueryScore] = {}
        tallies = self._tally_keys(statistics.received)
        if not self.crossed:
            self._add_position_scores(m, statistics, null, scores)
            self._add_token_scores(m, null, scores)
            tallies |= self._add_offset_score(m, scores, positional)
        if self.ids is not None:
            tallies |= self._add_one_token_score(m, statistics.received, scores)
        return MapScores(scores, sink_key, positional, Tallies(**tallies))

    def _without_padding(self, m: AttentionMap) -> AttentionMap:
        """The map (B, H, T, S) with all axes, in which padded queries attend to nothing."""
        if self.is_token_query is None:
            return m._with(axes=Axes(), precise=m.precise)
        q = m.q.masked_fill(~self.is_token_query[:, None, :, None], 0.0)
        return m._with(q=q, lse=m.lse.masked_fill(~self.is_token_query[:, None], -torch.inf), axes=Axes())

    def _active_queries(self) -> Tensor:
        """(B, h, T): the queries that are no padding and see some key."""
        sees = self.visibility.keys > 0
        return sees if self.is_token_query is None else sees & self.is_token_query[:, None]

    def positions(self) -> Tensor:
        """(T,): the positions of the queries among the keys."""
        return torch.arange(self.matrix[2], device=self.device) + self.first_position

    def _find_sink_keys(self, stats: KnownStatistics) -> Tensor:
        """(B, H): the sink key of every head, −1 for none."""
        is_token = None if self.is_token_key is None else self.is_token_key[:, None]
        num_queries = self._active_queries().sum(-1, keepdim=True)  # (B, h, 1)
        return find_sink_keys(stats.received, self.visibility.queries, num_queries, is_token).keys

    def _add_position_scores(
        self,
        m: AttentionMap,
        stats: KnownStatistics,
        null: dict[str, QueryScore] | None,
        scores: dict[str, QueryScore],
    ) -> None:
        """Add the scores that compare the positions of queries and keys."""
        active, positions = self._active_queries(), self.positions()
        near, (sinks, window) = self.options.near, self.options.policy
        band = diagonal_mass(m, near, window)
        has_previous = (positions > 0).expand(active.shape)
        if self.is_token_key is not None:
            has_previous = has_previous & self.is_token_key[:, None, (positions - 1).clamp(min=0)]
        scores["previous_token"] = QueryScore(band.previous, active & has_previous)
        scores["itself"] = QueryScore(band.itself, active)
        scores["local"] = QueryScore(band.near, active)
        # Attention to later tokens has no distance back, and no cache that could evict keys.
        later = self.visibility.later
        scores["distance"] = QueryScore(stats.distance, torch.zeros_like(active) if later else active)
        if later:
            return
        kept = ((key.view(-1, 1, 1), columns(m, key.view(-1, 1))) for key in self.first_keys(sinks))
        loss = eviction_loss_from_sums(self.row_sums(m), band.latest, kept, positions, window)
        # Uniform attention loses whole keys, which distinguishes a loss from rounding.
        loses = (
            active & ((loss * self.visibility.keys).round() > 0) if null is None else null["eviction"].defined
        )
        scores["eviction"] = QueryScore(loss, loses)

    def _tally_keys(self, received: Tensor) -> dict[str, Tensor]:
        """What every key received, and how many queries see it: (2, H, S), summed over the texts.

        Texts with padding on the left are aligned at their first tokens, where sinks usually are.
        """
        both = torch.stack([received, self.visibility.queries.expand_as(received)]).double()
        if self.is_token_key is not None:
            both = both.masked_fill(~self.is_token_key[:, None], 0.0)
            first = self.is_token_key.byte().argmax(-1).tolist()
            shifts = [place - min(first) for place in first]
            both = torch.stack([x.roll(-n, -1) for x, n in zip(both.unbind(1), shifts, strict=True)], 1)
        return {"keys": both.sum(1)}

    @cached_property
    def _rows(self) -> Tensor:
        """The rows in which the offset with the most attention is looked for."""
        return sample_rows(self.matrix[2], self.device)

    @cached_property
    def _offset_counts(self) -> Tensor:
        """(B, h, S): in how many of these rows the key n tokens back is visible, for every n."""
        return offset_sums(self._without_padding(self.visibility.uniform), self._rows, count=True)

    def _add_offset_score(
        self, m: AttentionMap, scores: dict[str, QueryScore], positional: dict[str, QueryScore]
    ) -> dict[str, Tensor]:
        """Add the score of the offset n ≥ 2 with the most attention, and what it explains of equal tokens.

        Only queries count whose key n tokens back is no copy of theirs and follows none: where tokens repeat
        with one period, an induction head attends to a fixed offset too. The first key, on which heads rest
        that find nothing, does not count either.
        """
        sums, counts = offset_sums(m, self._rows), self._offset_counts
        active, positions = self._active_queries(), self.positions()
        num_rows = active[..., self._rows].sum(-1, keepdim=True)
        distant = torch.arange(counts.shape[-1], device=self.device) >= 2  # the others have their own scores
        offsets = find_sink_keys(sums, counts * distant, num_rows).keys  # (B, H), −1 for none
        values = weights_at_offsets(m, offsets)  # (B, H, T)
        keys = (positions - offsets.unsqueeze(-1)).where(offsets.unsqueeze(-1) >= 0, -1)  # (B, H, T)
        first = self.first_keys(1)[0].view(-1, 1, 1)
        sees = weights_at_offsets(self._without_padding(self.visibility.uniform), offsets) > 0
        controls = active & sees & (keys > first)
        if self.ids is not None:
            tokens = self.ids[:, positions].unsqueeze(1)  # (B, 1, T)

            def is_copy(places: Tensor) -> Tensor:
                ids = self.ids.unsqueeze(1).expand(*places.shape[:2], -1)  # type: ignore[union-attr]
                return (ids.gather(-1, places.clamp(min=0)) == tokens) & (places >= 0)

            targets = {"duplicate": is_copy(keys), "induction": is_copy(keys - 1) & (keys >= 0)}
            controls = controls & ~targets["duplicate"] & ~targets["induction"]
            mean = (values * controls).sum(-1) / controls.sum(-1).clamp(min=1)  # (B, H)
            for name, is_target in targets.items():
                positional[name] = QueryScore(mean.unsqueeze(-1) * is_target, scores[name].defined)
        scores["fixed_offset"] = QueryScore(values, controls)
        return {"offsets": torch.stack([sums, counts.expand_as(sums)]).double().sum(1)}

    def _add_one_token_score(
        self, m: AttentionMap, received: Tensor, scores: dict[str, QueryScore]
    ) -> dict[str, Tensor]:
        """Add the score of the token id whose keys, wherever they stand, receive the most together."""
        assert self.ids is not None
        B, H, T, _ = m.matrix
        active = self._active_queries().expand(B, H, T)
        values, defined = m.lse.new_zeros(B, H, T), torch.zeros_like(active)
        uniform = self._without_padding(self.visibility.uniform)
        tables = []
        for b, row in enumerate(self.ids):
            places = torch.arange(len(row), device=self.device)
            if self.is_token_key is not None:
                places = places[self.is_token_key[b]]
            tokens, which = row[places].unique(return_inverse=True)
            mass = received.new_zeros(H, len(tokens)).index_add_(1, which, received[b][:, places])
            # Queries that see some key of the token: those of the key that most see. Fewer than there are,
            # under a sliding window that several of them share; the score itself counts exactly.
            seeing = self.visibility.queries[b][:, places].expand(H, -1)
            sees = torch.zeros_like(mass).scatter_reduce_(1, which.expand(H, -1), seeing.to(mass), "amax")
            shares = torch.minimum(mass, sees)
            best = find_sink_keys(shares, sees, active[b].sum(-1, keepdim=True)).keys.tolist()
            top = shares.topk(min(MOST_TOKENS, len(tokens))).indices  # (H, n)
            table = torch.stack([tokens[top].double(), shares.gather(1, top), sees.gather(1, top)], -1)
            tables.append(table)
            for h, token in enumerate(best):
                if token >= 0:
                    keys = places[which == token]
                    values[b, h] = _mass_on(m, b, h, keys)
                    defined[b, h] = _mass_on(uniform, b, h, keys) > 0
        scores["one_token"] = QueryScore(values, active & defined)
        return {"tokens": torch.cat(tables, 1)}

    def row_sums(self, m: AttentionMap) -> Tensor:
        """The sum of every row's weights, (B, H, T): 1, less the share of a sink logit."""
        if m.sinks is None:
            return torch.ones_like(m.lse)
        share = (m.sinks.double().view(-1, 1) - m.precise_lse()).exp()
        return 1.0 - share.to(m.dtype)

    def first_keys(self, n: int) -> list[Tensor]:
        """The first n keys of every text that are no padding, (B,) each."""
        B, _, _, S = self.matrix
        n = min(n, S)
        if self.is_token_key is None:
            return [torch.full((B,), i, device=self.device) for i in range(n)]
        order = (~self.is_token_key).byte().argsort(dim=1, stable=True)
        return list(order[:, :n].unbind(1))

    @cached_property
    def _blocks(self) -> list[list[TokenBlock]]:
        """The blocks of equal tokens of every text."""
        assert self.ids is not None
        _, H, T, _ = self.matrix
        is_token = [None] * len(self.ids) if self.is_token_key is None else self.is_token_key
        queries = range(self.first_position, self.first_position + T)
        return [find_blocks(*text, queries, H) for text in zip(self.ids, is_token, strict=True)]

    def _add_token_scores(
        self, m: AttentionMap, null: dict[str, QueryScore] | None, scores: dict[str, QueryScore]
    ) -> None:
        """Add the scores that depend on which tokens are equal."""
        if self.ids is None:
            return
        pairs = copy_mass(m, self.ids, self._blocks)
        for name, mass in (("duplicate", pairs.copies), ("induction", pairs.after)):
            # A score is defined where uniform attention gives some mass to such a key.
            scores[name] = QueryScore(mass, mass > 0 if null is None else null[name].defined)

    @cached_property
    def relabelled(self) -> TextScorer | None:
        """A scorer of the same text with its tokens shuffled: the chance level of the token scores."""
        if self.ids is None:
            return None
        generator = torch.Generator().manual_seed(0)
        ids = self.ids.clone()
        for b in range(len(ids)):
            text = slice(None) if self.is_token_key is None else self.is_token_key[b]
            tokens = ids[b, text]
            order = torch.randperm(len(tokens), generator=generator, device="cpu")
            ids[b, text] = tokens[order.to(tokens.device)]
        other = copy.copy(self)
        other.__dict__.pop("_blocks", None)  # those of the tokens as they were
        other.ids, other.null = ids, {}
        other._add_token_scores(other._without_padding(self.visibility.uniform), None, other.null)
        return other

    def token_scores(self, m: AttentionMap) -> dict[str, QueryScore]:
        """Only the scores that depend on which tokens are equal."""
        scores: dict[str, QueryScore] = {}
        self._add_token_scores(self._without_padding(m), self.null, scores)
        return scores


def columns(m: AttentionMap, keys: Tensor) -> Tensor:
    """The weights of all queries on one key for each text and head, keys (B, H or 1): (B, H, T)."""
    B, H, T, _ = m.matrix
    weights = m.lse.new_zeros(B, max(H, keys.shape[1]), T)
    for key in sorted(set(keys.flatten().tolist())):
        if key >= 0:
            column = m.tile(slice(None), slice(key, key + 1))[..., 0]
            weights = torch.where((keys == key).unsqueeze(-1), column, weights)
    return weights


def _mass_on(m: AttentionMap, b: int, h: int, keys: Tensor) -> Tensor:
    """The mass (T,) of every query on some keys, for a text and a head, or the one that stands for all."""
    h = min(h, m.matrix[1] - 1)
    one = m.select(slice(b, b + 1), slice(h, h + 1))
    weights: Tensor = one.tile(slice(None), keys)[0, 0].sum(-1)
    return weights


class DiagonalMass(NamedTuple):
    """Sums of weights beside the diagonal, (B, H, T) each."""

    itself: Tensor
    previous: Tensor
    near: Tensor
    latest: Tensor


def diagonal_mass(m: AttentionMap, near: int, latest: int) -> DiagonalMass:
    """The weight on a query's own position, on the one before, and on the `near` and `latest` last ones."""
    B, H, T, S = m.matrix
    first = m.first_position
    reach = max(near, latest, 2)
    step = max(reach, 64)
    masses = DiagonalMass(*(m.lse.new_zeros(B, H, T) for _ in range(4)))
    for i in range(0, T, step):
        # A tile of some rows, with the keys that any of them needs.
        rows = slice(i, min(i + step, T))
        keys = slice(max(0, first + i - reach + 1), max(0, min(S, first + rows.stop)))
        tile = m.tile(rows, keys)  # (B, H, rows, keys)
        back = torch.arange(rows.start + first, rows.stop + first, device=m.device).view(-1, 1)
        back = back - torch.arange(keys.start, keys.stop, device=m.device)  # distance to each key
        past = back >= 0
        parts = (back == 0, back == 1, past & (back < near), past & (back < latest))
        for mass, part in zip(masses, parts, strict=True):
            mass[:, :, rows] = tile.where(part, 0.0).sum(-1)
    return masses
