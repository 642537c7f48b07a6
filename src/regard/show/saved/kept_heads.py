"""Which heads a saved page keeps, where all of them would make it too large to be sent.

Heads with a label come first, then those that attend most selectively, both on the first tokens of a text.
The others are named on the page, and `exact=True` keeps all of them. This file knows captures and the scores
of heads, not how they are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard.maps import AttentionMap
from regard.policies.cache_state import is_plainly_causal
from regard.recorder import Capture, Layer
from regard.recorder.map_preparation import select_heads
from regard.show.data.contents import Contents
from regard.show.data.head_rows import TextHeads
from regard.show.data.retention import first_tokens, select_table_heads
from regard.show.saved.pack import estimate_size

MOST = 30_000_000  # bytes of queries and keys in a page; with all else it stays below 40 MB
RANKED = 1024  # tokens of a text by which its heads are chosen: the scores of all at 8,192 take minutes

Place = tuple[str, int]
"""A layer's key, and the number of a head in the model."""


def keep_telling_heads(contents: Contents, most: int = MOST) -> Contents:
    """Return the contents with as many heads of each text as fit into `most` bytes; all of them if they do.

    `left_out` of the result names the other heads of the first text.
    """
    size = estimate_size(contents)
    is_shard = any(layer.placement is not None for seen in contents.texts for layer in seen.layers)
    if size <= most or contents.removed or is_shard:
        return contents
    first = _rank(contents, 0)
    orders: list[list[Place]] = []
    for text in range(len(contents.texts)):
        own = _rank(contents, text) if text else first
        # Texts that one model has read keep the same heads, so that they can be compared.
        orders.append([x for x in first if x in own] + [x for x in own if x not in first])
    share = most / size
    smaller = _keep(contents, orders, share)
    # Heads that tell much have larger scores than others, and take more bits.
    while (size := estimate_size(smaller)) > most and share * max(map(len, orders)) >= 1:
        share *= 0.95 * most / size
        smaller = _keep(contents, orders, share)
    return smaller


def _keep(contents: Contents, orders: list[list[Place]], share: float) -> Contents:
    """Return the contents with a share of the heads of each text, the first in its order; at least one."""
    kept = [set(order[: max(1, int(len(order) * share))]) for order in orders]
    captures = [_select(seen, places) for seen, places in zip(contents.texts, kept, strict=True)]
    smaller = contents.with_captures(captures, orders[0][0])
    smaller.lookup = contents.lookup
    for number, run in contents.edited.items():
        smaller[number].run = run
    smaller.retention = {
        text: {str(x.key): select_table_heads(tables[str(x.key)], x.heads) for x in captures[text].layers}
        for text, tables in contents.retention.items()
    }
    every = [(str(layer.key), head) for layer in contents.texts[0].layers for head in layer.heads]
    smaller.left_out = [f"{layer}.{head}" for layer, head in every if (layer, head) not in kept[0]]
    smaller.forget_meta()
    return smaller


def _rank(contents: Contents, text: int) -> list[Place]:
    """Return the heads of a text: the one that the page opens on, labelled ones, then the most selective."""

    def rank(row: dict[str, Any]) -> tuple[bool, bool, float]:
        entropy = row["scores"].get("normalised_entropy", {}).get("value")
        is_start = text == 0 and (row["layer"], row["head"]) == contents.start
        return not is_start, row["label"] is None, 1.0 if entropy is None else entropy

    return [(row["layer"], row["head"]) for row in sorted(_score_first_tokens(contents, text), key=rank)]


def _score_first_tokens(contents: Contents, text: int) -> Iterator[dict[str, Any]]:
    """Score all heads on the first tokens of a text, as `ShownText.heads` does on all of it."""
    seen = contents.texts[text]
    heads = TextHeads(seen, contents.batch_index, RANKED)
    for layer in seen.layers:
        m = contents[text].layer_map(layer.key)
        T, S = m.matrix[2:]
        is_long = RANKED < T == S and seen.pictures is None
        if is_long and isinstance(m, AttentionMap) and (is_plainly_causal(m) or m.mask.is_causal):
            yield from heads.rows(layer, first_tokens(m, RANKED))
        else:
            yield from contents[text].layer_heads(layer.key)


def _select(seen: Capture, places: set[Place]) -> Capture:
    """Return the capture with some of its heads, and without layers that have none of them."""
    kept = [
        (layer, [head for head in layer.heads if (str(layer.key), head) in places]) for layer in seen.layers
    ]
    layers = [_select_layer(layer, heads) for layer, heads in kept if heads]
    # Contributions are those of all heads together.
    smaller = replace(seen, layers=layers, is_whole=False, residual=None)
    smaller.seal()
    return smaller


def _select_layer(layer: Layer, heads: list[int]) -> Layer:
    m, _, value_heads = select_heads(layer.map, [layer.heads.index(head) for head in heads])
    values = None if layer.values is None else layer.values[:, value_heads]
    return Layer(layer.number, layer.name, layer.stack, m, layer.evidence, heads, values)
