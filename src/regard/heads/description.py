"""`describe`: the table of heads from maps and tokens; `study`: the same from a model and texts.

`study` lets the model read each text, the text shuffled, and random tokens repeated. One text at a time, one
layer at a time: beside a model's own maps of one text, only sums are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.heads.labels import REPEATS, labels
from regard.heads.measurement import Ids, measure, total
from regard.heads.query_scores import KEPT, NAMES, NEAR, KnownStatistics, Options
from regard.heads.repeated_tokens import repeated
from regard.heads.running_sums import Estimate, RunningSums
from regard.heads.table import HeadRow, HeadTable, Score
from regard.maps import AttentionMap

ON_REPEATS = ("induction", "previous_token", "duplicate")
Maps = Iterable[AttentionMap]
Run = Callable[[Tensor], Maps]


class LayerMaps(NamedTuple):
    """What the rows of a layer are called."""

    key: int | str
    heads: Sequence[int]
    kv_heads: Sequence[int]


def describe(
    maps: Maps | Sequence[tuple[Maps, Ids]],
    ids: Ids = None,
    *,
    keys: Sequence[int | str] | None = None,
    heads: Sequence[Sequence[int]] | None = None,
    group: int | None = None,
    real: Tensor | None = None,
    shuffled: tuple[Maps, Tensor] | Sequence[tuple[Maps, Tensor]] | None = None,
    statistics: Iterable[KnownStatistics] | None = None,
    near: int = NEAR,
    kept: tuple[int, int] = KEPT,
    model: str = "",
) -> HeadTable:
    """What every head does, from the maps (B, H, T, S) of all layers and the tokens ids (B, S) they read.

    Several texts are a batch, or a list of (maps, ids). `ids` may be a list, one a layer, where layers read
    different tokens, as an encoder and a decoder do. `real`, boolean (B, S), says which tokens are text and
    not padding. `keys` names the layers; those that begin with "cross" look at another text. Where a map
    holds only some heads, `heads` are their numbers in the model, and `group` of them share a key/value head.
    `shuffled` is what the same model does with shuffled texts, as (maps, ids). `statistics` are those of each
    map, if they are known already, as from `map.summary(…)`. `near` tokens count as local; `kept` is the
    cache policy that eviction judges: so many first and so many latest keys.

    >>> import regard
    >>> q = torch.zeros(1, 2, 12, 4)
    >>> table = describe([regard.attention_map(q, q, mask=regard.causal)], torch.arange(12)[None] % 4)
    >>> table[0, 1].label, round(table[0, 1].scores["induction"].value, 3)
    (None, 0.176)
    """
    options = Options(near, kept)
    texts = _as_texts(maps, ids)
    count = sum(_batch(some) for some, _ in texts)
    measured = partial(measure, real=real, crossed=_crossed(keys), options=options)
    tallies, layers, tokens = [], [], 0
    for some, read in texts:
        found = list(measured(some, read, known=statistics, single=count == 1))
        tallies.append([tally for tally, _ in found])
        layers = [name_layer(i, map, keys, heads, group) for i, (_, map) in enumerate(found)]
        tokens += _tokens(found[0][1], real) if found else 0
    other = None
    if shuffled is not None:
        pairs = [shuffled] if isinstance(shuffled, tuple) else list(shuffled)
        other = total((x for x, _ in measured(some, read)) for some, read in pairs)
    return assemble(layers, total(tallies), shuffled=other, texts=count, tokens=tokens, model=model)


@torch.no_grad()
def study(
    run: Run,
    texts: Tensor | Sequence[Tensor],
    vocab_size: int,
    start: int | None = None,
    *,
    shuffle: bool = True,
    probe: bool = True,
    draws: int = 10,
    longest: int | None = None,
    seed: int = 0,
    keys: Sequence[int | str] | None = None,
    near: int = NEAR,
    kept: tuple[int, int] = KEPT,
    model: str = "",
    tell: Callable[[str], None] = lambda doing: None,
) -> HeadTable:
    """What the heads of a model do with texts, with the texts shuffled, and with random tokens repeated.

    `run(ids)` gives the maps of every layer for tokens (B, T), as `GPT.maps` does. `texts` are ids (B, T), or
    a list of ids (T,) or (1, T) of any length; `start` is the token that stands before every text, if there
    is one, and stays there when a text is shuffled. Scores on random tokens end in `_on_repeats`; `longest`
    is the most tokens that the model can read. `tell` hears what is being done.
    """
    batches = _as_batches(texts)
    options = Options(near, kept)
    single = sum(map(len, batches)) == 1
    generator = torch.Generator().manual_seed(seed)
    layers: list[LayerMaps] = []

    def tallied(ids: Tensor, single: bool = False) -> list[RunningSums]:
        found = list(measure(run(ids), ids, crossed=_crossed(keys), options=options, single=single))
        layers[:] = [name_layer(i, map, keys) for i, (_, map) in enumerate(found)]
        return [tally for tally, _ in found]

    sums: list[RunningSums] = []
    shuffled: list[RunningSums] | None = None
    for number, ids in enumerate(batches):
        tell(f"reading text {number + 1} of {len(batches)}" if len(batches) > 1 else "reading the text")
        sums = total([sums, tallied(ids, single)]) if sums else tallied(ids, single)
        if shuffle:
            tell("reading it shuffled")
            mixed = tallied(_mixed(ids, start, generator))
            shuffled = total([shuffled, mixed]) if shuffled else mixed
    repeats = None
    if probe:
        tell("reading random tokens, repeated")
        room = min(25, vocab_size - 2, (longest - 1) // 4 if longest else 25)
        ids = repeated(vocab_size, start=start, tokens=max(room, 1), draws=draws, seed=seed)
        repeats = tallied(ids.to(batches[0].device))
    return assemble(
        layers,
        sums,
        shuffled=shuffled,
        repeats=repeats,
        texts=sum(map(len, batches)),
        tokens=sum(ids.numel() for ids in batches),
        model=model,
    )


def assemble(
    layers: Sequence[LayerMaps],
    tallies: Sequence[RunningSums],
    *,
    shuffled: Sequence[RunningSums] | None = None,
    repeats: Sequence[RunningSums] | None = None,
    texts: int = 1,
    tokens: int = 0,
    model: str = "",
) -> HeadTable:
    """The table of tallies, one a layer: of texts, and of shuffled texts and random repeats if any."""
    rows = []
    for place, (layer, tally) in enumerate(zip(layers, tallies, strict=True)):
        for i, (head, kv_head) in enumerate(zip(layer.heads, layer.kv_heads, strict=True)):
            found = {name: tally.estimate(name, i) for name in NAMES}
            if repeats is not None:
                found |= {f"{name}{REPEATS}": repeats[place].estimate(name, i) for name in ON_REPEATS}
            found = {name: x for name, x in found.items() if x.queries}
            mixed = {} if shuffled is None else {name: shuffled[place].estimate(name, i) for name in NAMES}
            scores = {name: _score(x, mixed.get(name), shuffled is not None) for name, x in found.items()}
            rows.append(HeadRow(layer.key, head, kv_head, labels(found), tally.sink_key(i), scores))
    how: Literal["text", "labels"] = "labels" if shuffled is None else "text"
    return HeadTable(rows, texts, tokens, how, model)


def _score(found: Estimate, mixed: Estimate | None, by_model: bool) -> Score:
    """A score beside what it is with shuffled tokens: read by the model if it was asked, else by label."""
    shuffled = found.labels if not by_model else math.nan if mixed is None else mixed.value
    return Score(found.value, found.null, shuffled, found.low, found.high, found.rest)


def name_layer(
    number: int,
    map: AttentionMap,
    keys: Sequence[int | str] | None = None,
    heads: Sequence[Sequence[int]] | None = None,
    group: int | None = None,
) -> LayerMaps:
    H, G = map.q.shape[1], map.k.shape[1]
    numbers = range(H) if heads is None else heads[number]
    group = group or H // G
    return LayerMaps(number if keys is None else keys[number], numbers, [h // group for h in numbers])


def _crossed(keys: Sequence[int | str] | None) -> list[bool] | None:
    return None if keys is None else [str(key).startswith("cross") for key in keys]


def _as_texts(maps: Any, ids: Ids) -> list[tuple[list[AttentionMap], Ids]]:
    given = list(maps)
    if given and all(isinstance(text, tuple) for text in given):
        if ids is not None:
            raise ValueError("ids: expected them beside each text's maps, as a list of (maps, ids)")
        return [(list(some), read) for some, read in given]
    return [(given, ids)]


def _batch(maps: Sequence[AttentionMap]) -> int:
    return maps[0].matrix[0] if maps else 0


def _tokens(map: AttentionMap, real: Tensor | None) -> int:
    return map.matrix[0] * map.matrix[2] if real is None else int(real.sum())


def _as_batches(texts: Tensor | Sequence[Tensor]) -> list[Tensor]:
    if isinstance(texts, Tensor):
        texts = [texts]
    found = [ids[None] if ids.ndim == 1 else ids for ids in texts]
    if not found or any(ids.ndim != 2 or not ids.numel() for ids in found):
        raise ValueError("texts: expected tokens (B, T), or a list of (T,) each, got none or empty ones")
    return found


def _mixed(ids: Tensor, start: int | None, generator: torch.Generator) -> Tensor:
    """Every text in another order, a start token kept in its place."""
    rows = []
    for row in ids:
        kept = 1 if start is not None and int(row[0]) == start else 0
        order = torch.randperm(len(row) - kept, generator=generator).to(row.device)
        rows.append(torch.cat([row[:kept], row[kept:][order]]))
    return torch.stack(rows)
