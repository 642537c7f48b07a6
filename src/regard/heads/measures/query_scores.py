"""Per-query scores: for every head and query, the value of each score, and for which queries it is defined.

The score of a head is the mean of these over some queries: those of a text, a block of it, or a corpus.
Everything comes from one pass over the map (entropy, distance, received attention), a band beside the
diagonal, a few columns, some rows and the pairs of equal tokens; no T×S matrix is built.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.heads.measures.chosen_keys import mass_on, sees, sees_any, several_columns, weights_on
from regard.heads.measures.duplicate_and_induction import (
    TokenBlock,
    copy_mass,
    copy_mass_by_kernel,
    find_blocks,
)
from regard.heads.measures.joined_maps import with_uniform_head
from regard.heads.measures.offsets import latest_mass, offset_sums, sample_rows, weight_back
from regard.heads.measures.patch_scores import PATCH_NAMES, patch_scores
from regard.heads.measures.sink import find_sink_keys
from regard.heads.measures.tallies import MOST_TOKENS, Tallies
from regard.heads.measures.visible_keys import Visibility, find_visibility
from regard.maps import AttentionMap, LinearAttentionMap
from regard.maps.index import Axes
from regard.pictures.patch_layout import PatchAxes
from regard.policies.named_policies import is_evicted

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


KnownStatistics = Any
"""The statistics of a map (B, H, T, S), from `m.statistics()` or `m.summary(…)`: what has them as fields."""


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

    def select(self, heads: slice) -> MapScores:
        """The same of some of the heads."""
        positional, tallies = _select(self.positional, heads), self.tallies.select(heads)
        return MapScores(_select(self.scores, heads), self.sink_key[:, heads], positional, tallies)


def _select(scores: dict[str, QueryScore], heads: slice) -> dict[str, QueryScore]:
    """The scores of some heads."""
    return {
        name: QueryScore(*(x if x.shape[1] == 1 else x[:, heads] for x in score))
        for name, score in scores.items()
    }


class TokenGroups(NamedTuple):
    """The keys of every text, grouped by their token; a text has up to S groups, and the rest are empty."""

    of_key: Tensor
    """(B, S): the group of each key."""
    tokens: Tensor
    """(B, S): the token of each group, −1 of padding and of an empty one."""
    seeing: Tensor
    """(B, h, S): how many queries see a key of each group."""


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
        self._null: dict[str, QueryScore] | None = None  # not known before the first map is scored
        # On a GPU a pass costs its launches. On a CPU one head of width 1 takes less time than more heads
        # of the width of the map: 440 against 482 ms for a text of 325 tokens.
        self.joins_baseline = m.device.type != "cpu"

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

    @property
    def null(self) -> dict[str, QueryScore]:
        """The scores of uniform attention, the baseline."""
        if self._null is None:
            self._null = self._score(self.visibility.uniform, None).scores
        return self._null

    def score(self, m: AttentionMap, statistics: KnownStatistics | None = None) -> MapScores:
        """Score a map; `statistics` are those of the map, if they are known already."""
        joined = self._join_baseline(m) if statistics is None else None
        if joined is None:
            return self._score(m, self.null, statistics)
        both = self._score(joined, None)
        self._null = both.select(slice(-1, None)).scores
        return both.select(slice(0, m.matrix[1]))

    def _join_baseline(self, m: AttentionMap) -> AttentionMap | None:
        """The first map of a text with its baseline, where they are scored together."""
        first = self._null is None and self.joins_baseline
        return with_uniform_head(m, self.visibility) if first else None

    def _score(
        self, m: AttentionMap, null: dict[str, QueryScore] | None, statistics: KnownStatistics | None = None
    ) -> MapScores:
        """The same; without `null` the last heads are uniform attention, which decides where scores count."""
        m = self._without_padding(m)
        if statistics is None or self.is_token_query is not None:  # known statistics include padding
            statistics = m.statistics()
        keys, active = self.visibility.keys, self._active_queries()
        sink_key = self._find_sink_keys(statistics)
        # The columns of the sink, and of the first keys that a cache would keep.
        first = self.first_keys(0 if self.crossed else self.options.policy[0])  # (B, n)
        chosen = torch.cat([sink_key.unsqueeze(-1), first.unsqueeze(1).expand(-1, sink_key.shape[1], -1)], -1)
        columns = several_columns(m, chosen)  # (B, H, T, 1 + n)
        sees_sink = sees(self.visibility.uniform, sink_key[:, :, None, None])[..., 0]
        relative = statistics.entropy / keys.clamp(min=2).log()
        scores = {
            "sink": QueryScore(columns[..., 0], sees_sink & active),
            "entropy": QueryScore(statistics.entropy, active),
            "normalised_entropy": QueryScore(relative, active & (keys > 1)),  # one key leaves no choice
        }
        if self.patches is not None:
            for name, score in patch_scores(m, self.patches, active).items():
                scores[name] = QueryScore(*score)
        positional: dict[str, QueryScore] = {}
        tallies = self._tally_keys(statistics.received)
        if not self.crossed:
            self._add_position_scores(m, statistics, null, scores, first, columns[..., 1:])
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
        first: Tensor,
        first_columns: Tensor,
    ) -> None:
        """Add the scores that compare the positions of queries and keys.

        `first` (B, n) are the first keys, which a cache keeps, with the weights `first_columns` (B, H, T, n).
        """
        active, positions = self._active_queries(), self.positions()
        near, (_, window) = self.options.near, self.options.policy
        has_previous = (positions > 0).expand(active.shape)
        if self.is_token_key is not None:
            has_previous = has_previous & self.is_token_key[:, None, (positions - 1).clamp(min=0)]
        scores["previous_token"] = QueryScore(weight_back(m, 1), active & has_previous)
        scores["itself"] = QueryScore(weight_back(m, 0), active)
        scores["local"] = QueryScore(latest_mass(m, near), active)
        # Attention to later tokens has no distance back, and no cache that could evict keys.
        later = self.visibility.later
        scores["distance"] = QueryScore(stats.distance, torch.zeros_like(active) if later else active)
        if later:
            return
        # What `streaming` loses when it evicts keys one by one, from sums that are there already.
        would_be_lost = is_evicted(positions.unsqueeze(-1), first[:, None, None], window)  # (B, 1, T, n)
        kept = first_columns.where(would_be_lost, 0.0).sum(-1)
        loss = (self.row_sums(m) - latest_mass(m, window) - kept).clamp(min=0.0)
        # Uniform attention loses whole keys, which distinguishes a loss from rounding.
        lost = (loss * self.visibility.keys).round() > 0
        scores["eviction"] = QueryScore(loss, active & self._counts("eviction", lost, null))

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
        keys = (positions - offsets.unsqueeze(-1)).where(offsets.unsqueeze(-1) >= 0, -1)  # (B, H, T)
        values = weights_on(m, keys)  # (B, H, T)
        first = self.first_keys(1).unsqueeze(1)  # (B, 1, 1)
        controls = active & sees(self.visibility.uniform, keys.unsqueeze(-1))[..., 0] & (keys > first)
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
        groups, n = self._token_groups, min(MOST_TOKENS, m.matrix[3])
        of_key = groups.of_key.unsqueeze(1)  # (B, 1, S)
        mass = torch.zeros_like(received).scatter_add_(2, of_key.expand_as(received), received)
        shares = torch.minimum(mass, groups.seeing)
        num_queries = self._active_queries().sum(-1, keepdim=True)
        best = find_sink_keys(shares, groups.seeing, num_queries).keys  # (B, H)
        is_key = of_key == best.unsqueeze(-1)
        defined = self._active_queries() & sees_any(self.visibility.uniform, is_key)
        scores["one_token"] = QueryScore(mass_on(m, is_key), defined)
        top = shares.topk(n).indices  # (B, H, n)
        table = (groups.tokens.unsqueeze(1).double(), shares.double(), groups.seeing.double())
        strongest = torch.stack([x.expand_as(shares).gather(2, top) for x in table], -1)
        return {"tokens": strongest.transpose(0, 1).flatten(1, 2)}

    @cached_property
    def _token_groups(self) -> TokenGroups:
        """The keys of every text by their token, all texts at once: nothing is read back from a GPU."""
        assert self.ids is not None
        ids, queries = self.ids, self.visibility.queries
        if self.is_token_key is not None:
            # −1: a group of its own, whose keys nobody counts as seeing.
            ids = ids.masked_fill(~self.is_token_key, -1)
            queries = queries.masked_fill(~self.is_token_key.unsqueeze(1), 0.0)
        ordered, order = ids.sort(dim=1, stable=True)
        is_first = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))
        group = is_first.long().cumsum(1)
        tokens = torch.full_like(ids, -1).scatter_(1, group, ordered)
        of_key = torch.empty_like(group).scatter_(1, order, group)
        # Queries that see some key of the token: those of the key that most see. Fewer than there are, under
        # a sliding window that several of them share; the score itself counts exactly.
        seeing = torch.zeros_like(queries)
        seeing.scatter_reduce_(2, of_key.unsqueeze(1).expand_as(queries), queries, "amax")
        return TokenGroups(of_key, tokens, seeing)

    def row_sums(self, m: AttentionMap) -> Tensor:
        """The sum of every row's weights, (B, H, T): 1, less the share of a sink logit."""
        if m.sinks is None:
            return torch.ones_like(m.lse)
        share = (m.sinks.double().view(-1, 1) - m.precise_lse()).exp()
        return 1.0 - share.to(m.dtype)

    def first_keys(self, n: int) -> Tensor:
        """The first n keys of every text that are no padding, (B, n), or as many as there are."""
        B, _, _, S = self.matrix
        if self.is_token_key is None:
            return torch.arange(min(n, S), device=self.device).expand(B, -1)
        return (~self.is_token_key).byte().argsort(dim=1, stable=True)[:, :n]

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
        pairs = copy_mass_by_kernel(m, self.ids, self.is_token_key)
        pairs = pairs or copy_mass(m, self.ids, self._blocks)
        for name, mass in (("duplicate", pairs.copies), ("induction", pairs.after)):
            # A score is defined where uniform attention gives some mass to such a key.
            scores[name] = QueryScore(mass, self._counts(name, mass > 0, null))

    def _counts(self, name: str, found: Tensor, null: dict[str, QueryScore] | None) -> Tensor:
        """For which queries a score is defined: those for which it was `found` of uniform attention."""
        return found[:, -self.visibility.keys.shape[1] :] if null is None else null[name].defined

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
        for of_the_tokens in ("_blocks", "_token_groups"):  # as they were
            other.__dict__.pop(of_the_tokens, None)
        other.ids, other._null = ids, None
        return other

    def token_scores(self, m: AttentionMap) -> dict[str, QueryScore]:
        """Only the scores that depend on which tokens are equal."""
        scores: dict[str, QueryScore] = {}
        if self._null is None:
            joined = self._join_baseline(m)
            both = self.visibility.uniform if joined is None else joined
            self._add_token_scores(self._without_padding(both), None, scores)
            self._null = _select(scores, slice(-self.visibility.keys.shape[1], None))
            if joined is not None:
                return _select(scores, slice(0, m.matrix[1]))
        self._add_token_scores(self._without_padding(m), self._null, scores)
        return scores
