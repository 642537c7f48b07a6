"""Matched random edits: the baseline of an effect.

The counterpart of an edit of heads is the same edit of as many other heads of the same layers. That of
blocked edges blocks other edges of the same heads, at random, with as much attention on them; that of a cache
policy keeps as many keys at random.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.named_masks import rule
from regard.attention.position_hash import uniform_hash
from regard.interventions.ablation import CacheEviction
from regard.interventions.edge_block import EdgeBlock
from regard.interventions.edit import CallPlace, Edit
from regard.interventions.head_selection import HeadPair, HeadSelection, select_heads
from regard.policies.named_policies import random as random_keys
from regard.recorder.attention_call import AttentionCall
from regard.recorder.layer import Layer


class ModelHeads(NamedTuple):
    """The heads of a model."""

    counts: Mapping[str, int]
    """The number of heads of each layer, by the layer's key."""
    keys: Mapping[str, str]
    """The key of each layer, by the name of its module."""

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> ModelHeads:
        """Return the heads of captured layers that edits reach."""
        softmax = [layer for layer in layers if not layer.is_linear]
        keys = {layer.name: str(layer.key) for layer in softmax}
        return cls({str(layer.key): layer.shape[1] for layer in softmax}, keys)

    def pairs(self, selection: HeadSelection) -> list[HeadPair]:
        """Return the heads of a selection as pairs (key of the layer, head)."""
        layers = [(self.keys.get(layer, layer), heads) for layer, heads in selection.layers]
        return [
            (key, head)
            for key, heads in layers
            for head in (range(self.counts.get(key, 0)) if heads is None else heads)
        ]


def draw_edits(edits: Sequence[Edit], model: ModelHeads, draws: int, seed: int) -> list[list[Edit]]:
    """Return `draws` random counterparts of some edits, each a list with one for every edit.

    Of heads, no choice is drawn twice: where a layer has few other heads, there are fewer draws. The list is
    empty where a model has no other heads to choose.
    """
    edited = {pair for edit in edits for pair in model.pairs(edit.selection)}
    # The heads of all edits are drawn together, layer by layer, so that no two of them become the same head.
    of_heads = [edit for edit in edits if not isinstance(edit, EdgeBlock | CacheEviction)]
    heads = list(dict.fromkeys(pair for edit in of_heads for pair in model.pairs(edit.selection)))
    layers = [layer for layer, _ in heads]
    heads.sort(key=lambda pair: layers.index(pair[0]))
    sets = _draw_heads(model, heads, edited, draws, random.Random(seed))
    others = [dict(zip(heads, drawn, strict=True)) for drawn in sets]  # each head, and the one in its place
    counterparts: list[list[Edit]] = []
    for edit in edits:
        if isinstance(edit, EdgeBlock):
            counterparts.append([RandomEdgeBlock(edit.selection, edit, seed + n) for n in range(draws)])
        elif isinstance(edit, CacheEviction):
            counterparts.append([replace(edit, policy=random_keys(seed + n)) for n in range(draws)])
        else:
            pairs = model.pairs(edit.selection)
            choices = [select_heads(heads=[other[pair] for pair in pairs]) for other in others]
            counterparts.append([replace(edit, selection=choice) for choice in choices])
    # One that has fewer choices than the others takes them again.
    counts = [len(choices) for choices in counterparts]
    return [
        [choices[n % len(choices)] for choices in counterparts]
        for n in range(max(counts) if all(counts) else 0)
    ]


def _draw_heads(
    model: ModelHeads,
    heads: Sequence[HeadPair],
    edited: set[HeadPair],
    draws: int,
    generator: random.Random,
) -> list[list[HeadPair]]:
    """Return different sets of heads that are like `heads` and not `edited`, at most `draws`.

    As many heads of the same layers are drawn; of the whole model where that leaves fewer than two sets,
    which make no band.
    """
    free: dict[str, list[HeadPair]] = {
        key: [(key, head) for head in range(H) if (key, head) not in edited]
        for key, H in model.counts.items()
    }
    wanted = Counter(str(key) for key, _ in heads)
    pools = [(free.get(key, []), n) for key, n in wanted.items()]
    if _count_sets(pools) < 2:
        pools = [([pair for pairs in free.values() for pair in pairs], len(heads))]
    if _count_sets(pools) <= draws:
        every = [list(itertools.combinations(pool, n)) for pool, n in pools]
        sets = [[pair for part in parts for pair in part] for parts in itertools.product(*every)]
        generator.shuffle(sets)
        return sets
    drawn: dict[frozenset[HeadPair], list[HeadPair]] = {}
    while len(drawn) < draws:
        chosen = [pair for pool, n in pools for pair in generator.sample(pool, n)]
        drawn.setdefault(frozenset(chosen), chosen)
    return list(drawn.values())


def _count_sets(pools: Sequence[tuple[list[HeadPair], int]]) -> int:
    """Return how many different sets there are with n heads of each pool."""
    return math.prod(math.comb(len(pool), n) for pool, n in pools)


@dataclass(frozen=True)
class RandomEdgeBlock(Edit):
    """Cuts random edges of the heads of another block, with as much attention on them in every row.

    A row that gives the mass m to the edges of `block` loses each of its other visible edges with probability
    m / (1 − m), at most 1, so that the mass on the edges it loses is m on average. A hash of query, key, head
    and `seed` decides, which is a mask rule and needs no matrix.
    """

    block: EdgeBlock
    seed: int
    masses: list[tuple[float, float]] = field(default_factory=list, compare=False)
    """For each call: the mean mass on the edges of `block`, and on those that were cut instead."""

    rank = 1

    def with_weights(
        self, call: AttentionCall, heads: list[int], place: CallPlace, rows: Tensor | None
    ) -> AttentionCall:
        place.check()
        T, S = call.q.shape[2], call.k.shape[2]
        edges = self.block.edges_in(place, T, S, call.q.device)
        m = call.attention_map()
        mass = m.mass(edges)  # (B, H, T)
        # A row may have all its attention on the edges of the block.
        probability = (mass / (1 - mass).clamp(min=torch.finfo(mass.dtype).tiny)).clamp(max=1.0)
        first = S - T  # positions count the keys from 0

        def is_drawn(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return uniform_hash(q, k, h, self.seed) < probability[b, h, (q - first).clamp(0, T - 1)]

        drawn = rule(is_drawn) & ~edges
        self.masses.append((_mean_over(mass, heads), _mean_over(m.mass(drawn), heads)))
        here = place._replace(first_row=0, first_key=0, T=T, S=S)  # where `drawn` counts
        edited = replace(self.block, edges=drawn).apply(call, heads, here)
        return call._replace() if edited is call else edited  # a draw without any edge is a draw

    def __str__(self) -> str:
        return f"{self.selection} without random edges"


def _mean_over(mass: Tensor, heads: list[int]) -> float:
    return float(mass[:, heads].double().mean())
