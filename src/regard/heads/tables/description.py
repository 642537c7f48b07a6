"""`describe`: the table of heads from maps and tokens; `study`: the same from a model and texts.

`study` runs the model on each text, on the text shuffled, and on random tokens repeated. It takes one text
and one layer at a time: beside the model's own maps of one text, only sums are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.heads.labels import REPEATS, earned_labels, find_targets
from regard.heads.measures.measurement import Ids, add_up, measure
from regard.heads.measures.query_scores import NAMES, NEAR, POLICY, KnownStatistics, Options, TextScorer
from regard.heads.measures.running_sums import Estimates, RunningSums, estimate_heads
from regard.heads.repeated_tokens import draw_repeats
from regard.heads.tables.table import HeadRow, HeadTable, Score, split_key
from regard.maps import AttentionMap, LinearAttentionMap
from regard.pictures.patch_layout import PatchAxes

ON_REPEATS = ("induction", "previous_token", "duplicate")
Maps = Iterable[AttentionMap | LinearAttentionMap]
RunModel = Callable[[Tensor], Maps]


class LayerHeads(NamedTuple):
    """The key of a layer ("3" or "decoder.3"), and the numbers of its heads and of their key/value heads."""

    key: str
    heads: Sequence[int]
    kv_heads: Sequence[int]


def describe(
    maps: Maps | Sequence[tuple[Maps, Ids]],
    ids: Ids = None,
    *,
    keys: Sequence[int | str] | None = None,
    heads: Sequence[Sequence[int]] | None = None,
    group: int | None = None,
    attention_mask: Tensor | None = None,
    shuffled: tuple[Maps, Tensor] | Sequence[tuple[Maps, Tensor]] | None = None,
    statistics: Iterable[KnownStatistics] | None = None,
    near: int = NEAR,
    policy: tuple[int, int] = POLICY,
    model: str = "",
    scorers: list[TextScorer] | None = None,
    patches: Sequence[PatchAxes | None] | None = None,
) -> HeadTable:
    """Describe every head, from the maps (B, H, T, S) of all layers and their tokens ids (B, S).

    Several texts are a batch, or a list of (maps, ids). `ids` may be a list with those of each layer, where
    layers read different tokens, as an encoder and a decoder do. `attention_mask`, boolean (B, S), is False
    for padding. `keys` are the layers' keys, such as "3" or "decoder.3"; those of the stack "cross" attend to
    another text. Where a map holds only some heads, `heads` are their numbers in the model, and `group` of
    them share a key/value head. `shuffled` are the maps and ids of the same model on shuffled texts.
    `statistics` are those of each map, if they are known already, as from `m.summary(…)`. `near` tokens count
    as local; `policy` is the cache policy of the eviction score: numbers of first and of latest keys that are
    kept. `model` is a name for the table. `scorers`, a list that is empty at first, keeps what layers have in
    common for later calls about other layers of the same text, with the same ids. `patches` say for each
    layer what its tokens are if it attends among the patches of a picture (`seen.pictures.tower_axes(key)`).

    >>> import regard
    >>> q = torch.zeros(1, 2, 12, 4)
    >>> table = describe([regard.attention_map(q, q, mask=regard.causal)], torch.arange(12)[None] % 4)
    >>> table[0, 1].label, round(table[0, 1].scores["induction"].value, 3)
    (None, 0.176)
    """
    texts = _as_texts(maps, ids)
    num_texts = sum(text_maps[0].matrix[0] for text_maps, _ in texts if text_maps)
    measure_text = partial(
        measure,
        is_token=attention_mask,
        crossed=_are_crossed(keys),
        options=Options(near, policy),
        scorers=scorers,
        patches=patches,
    )
    # Measure every text, layer by layer.
    sums: list[list[RunningSums]] = []
    layers: list[LayerHeads] = []
    tokens = 0
    for text_maps, text_ids in texts:
        measured = list(measure_text(text_maps, text_ids, statistics=statistics, single=num_texts == 1))
        sums.append([layer.sums for layer in measured])
        layers = [name_layer(i, layer.map, keys, heads, group) for i, layer in enumerate(measured)]
        if measured:
            B, _, T, _ = measured[0].map.matrix
            tokens += B * T if attention_mask is None else int(attention_mask.sum())
    # The same for the shuffled texts.
    shuffled_sums = None
    if shuffled is not None:
        pairs = [shuffled] if isinstance(shuffled, tuple) else list(shuffled)
        shuffled_sums = add_up((layer.sums for layer in measure_text(*pair)) for pair in pairs)
    return assemble(layers, add_up(sums), shuffled=shuffled_sums, texts=num_texts, tokens=tokens, model=model)


@torch.no_grad()
def study(
    run: RunModel,
    texts: Tensor | Sequence[Tensor],
    vocab_size: int,
    start: int | None = None,
    *,
    shuffle: bool = True,
    probe: bool = True,
    draws: int = 10,
    max_length: int | None = None,
    seed: int = 0,
    keys: Sequence[int | str] | None = None,
    near: int = NEAR,
    policy: tuple[int, int] = POLICY,
    model: str = "",
    report: Callable[[str], None] = lambda message: None,
) -> HeadTable:
    """Describe the heads of a model on texts, on the texts shuffled, and on random tokens repeated.

    `run(ids)` gives the maps of every layer for tokens (B, T), as `GPT.maps` does. `texts` are ids (B, T), or
    a list of ids (T,) or (1, T) of any length; `vocab_size` is that of the model, `start` the token before
    every text, if there is one, which stays in its place when a text is shuffled. `shuffle=False` and
    `probe=False` leave out the shuffled texts and the repeated tokens. Scores on repeated tokens, of which
    there are `draws` texts, end in `_on_repeats`; `max_length` is the context length of the model, `seed`
    that of the shuffling and of the draws. `report` is called with a message at each step. `keys`, `near`,
    `policy` and `model` are those of `describe`.
    """
    batches = _as_batches(texts)
    options = Options(near, policy)
    single = sum(map(len, batches)) == 1
    generator = torch.Generator().manual_seed(seed)
    layers: list[LayerHeads] = []

    def measure_ids(ids: Tensor, single: bool = False) -> list[RunningSums]:
        measured = list(measure(run(ids), ids, crossed=_are_crossed(keys), options=options, single=single))
        layers[:] = [name_layer(i, layer.map, keys) for i, layer in enumerate(measured)]
        return [layer.sums for layer in measured]

    # The texts, and each of them shuffled.
    sums: list[RunningSums] = []
    shuffled: list[RunningSums] | None = None
    for number, ids in enumerate(batches):
        report(f"reading text {number + 1} of {len(batches)}" if len(batches) > 1 else "reading the text")
        sums = add_up([sums, measure_ids(ids, single)]) if sums else measure_ids(ids, single)
        if shuffle:
            report("reading it shuffled")
            shuffled_sums = measure_ids(_shuffle(ids, start, generator))
            shuffled = add_up([shuffled, shuffled_sums]) if shuffled else shuffled_sums
    # Random tokens, repeated.
    repeats = None
    if probe:
        report("reading random tokens, repeated")
        ids = draw_repeats(vocab_size, start, max_length=max_length, draws=draws, seed=seed)
        ids = ids.to(batches[0].device)
        # The text may be the repeats themselves: then one run is enough.
        already_read = len(batches) == 1 and torch.equal(ids, batches[0])
        repeats = sums if already_read else measure_ids(ids)
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
    layers: Sequence[LayerHeads],
    sums: Sequence[RunningSums],
    *,
    shuffled: Sequence[RunningSums] | None = None,
    repeats: Sequence[RunningSums] | None = None,
    texts: int = 1,
    tokens: int = 0,
    model: str = "",
) -> HeadTable:
    """Make the table from the running sums of every layer: of texts, shuffled texts and random repeats."""
    named = [(*split_key(x.key), *head) for x in layers for head in zip(x.heads, x.kv_heads, strict=True)]
    names, estimates = list(NAMES), estimate_heads(sums)
    # What the model read on shuffled tokens, if it did; else the same attention with relabelled ones.
    shuffled_values = estimates.relabelled if shuffled is None else estimate_heads(shuffled).value
    if repeats is not None:
        rows_of = [NAMES.index(name) for name in ON_REPEATS]
        of_repeats = Estimates(*(x[rows_of] for x in estimate_heads(repeats)))
        names += [f"{name}{REPEATS}" for name in ON_REPEATS]
        estimates = Estimates(*map(torch.cat, zip(estimates, of_repeats, strict=True)))
        unread = of_repeats.relabelled if shuffled is None else torch.full_like(of_repeats.value, math.nan)
        shuffled_values = torch.cat([shuffled_values, unread])
    targets = find_targets(sums, shuffled)
    fields = estimates._asdict() | {"shuffled": shuffled_values}
    scores = torch.stack([fields[name] for name in Score._fields], -1).transpose(0, 1).tolist()
    counts = estimates.queries.T.tolist()
    rows = []
    for (stack, layer, head, kv_head), labels, target, values, count in zip(
        named, earned_labels(names, estimates, targets), targets, scores, counts, strict=True
    ):
        # Scores that are defined for no query are left out.
        own = {name: Score(*x) for name, x, n in zip(names, values, count, strict=True) if n}
        rows.append(
            HeadRow(
                layer,
                head,
                kv_head,
                labels,
                target.sink_key,
                own,
                stack,
                offset=target.offset,
                token=target.token,
            )
        )
    how: Literal["text", "labels"] = "labels" if shuffled is None else "text"
    return HeadTable(rows, texts, tokens, how, model)


def name_layer(
    number: int,
    m: AttentionMap | LinearAttentionMap,
    keys: Sequence[int | str] | None = None,
    heads: Sequence[Sequence[int]] | None = None,
    group: int | None = None,
) -> LayerHeads:
    """The key and the head numbers of a layer, by default counted from 0; see `describe`."""
    H, G = m.matrix[1], m.k.shape[1]
    numbers = range(H) if heads is None else heads[number]
    # `or`: where a map holds some heads, H // G of the map is not that of the model.
    group = group or H // G
    return LayerHeads(str(number if keys is None else keys[number]), numbers, [h // group for h in numbers])


def _are_crossed(keys: Sequence[int | str] | None) -> list[bool] | None:
    """Which layers attend to another text."""
    return None if keys is None else [str(key).startswith("cross") for key in keys]


def _as_texts(maps: Any, ids: Ids) -> list[tuple[list[AttentionMap | LinearAttentionMap], Ids]]:
    """The arguments of `describe` as a list of texts, each with its maps and ids."""
    items = list(maps)
    if items and all(isinstance(item, tuple) for item in items):
        if ids is not None:
            raise ValueError("ids: expected them beside each text's maps, as a list of (maps, ids)")
        return [(list(text_maps), text_ids) for text_maps, text_ids in items]
    return [(items, ids)]


def _as_batches(texts: Tensor | Sequence[Tensor]) -> list[Tensor]:
    if isinstance(texts, Tensor):
        texts = [texts]
    batches = [ids[None] if ids.ndim == 1 else ids for ids in texts]
    if not batches or any(ids.ndim != 2 or not ids.numel() for ids in batches):
        raise ValueError("texts: expected tokens (B, T), or a list of (T,) each, got none or empty ones")
    return batches


def _shuffle(ids: Tensor, start: int | None, generator: torch.Generator) -> Tensor:
    """Every text (B, T) in random order, a start token kept in its place."""
    rows = []
    for row in ids:
        # Models put their sink on the start token: moved elsewhere it would change every head at once.
        kept = 1 if start is not None and int(row[0]) == start else 0
        order = torch.randperm(len(row) - kept, generator=generator, device="cpu").to(row.device)
        rows.append(torch.cat([row[:kept], row[kept:][order]]))
    return torch.stack(rows)
