"""From the maps of one text, or of a batch of texts, to sums: one tally a layer.

One layer at a time; of each only sums are kept. Layers that have the same shape and mask share what the mask
lets see and the nulls that follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from regard.heads.query_scores import KnownStatistics, Options, Text
from regard.heads.running_sums import BLOCKS, RunningSums, in_pieces
from regard.heads.without_sink import without_sink
from regard.maps import AttentionMap

Ids = Tensor | Sequence[Tensor | None] | None


@torch.no_grad()
def measure(
    maps: Iterable[AttentionMap],
    ids: Ids,
    real: Tensor | None = None,
    *,
    crossed: Sequence[bool] | None = None,
    known: Iterable[KnownStatistics] | None = None,
    options: Options = Options(),  # noqa: B008 (immutable)
    single: bool = False,
) -> Iterator[tuple[RunningSums, AttentionMap]]:
    """The tally of every layer, and its map. A `single` text is cut into blocks, for want of other texts.

    `ids` (B, S) are what all layers read, or a list of what each did; `real` goes with those of its shape.
    """
    texts: list[Text] = []
    statistics = None if known is None else iter(known)
    for layer, map in enumerate(maps):
        over = crossed is not None and crossed[layer]
        read = ids if ids is None or isinstance(ids, Tensor) else ids[layer]
        apart = over or not (ids is None or isinstance(ids, Tensor))
        known_real = None if apart and (read is None or real is None or read.shape != real.shape) else real
        if not over:
            _check(map, read, known_real)
        text = next((x for x in texts if x.suits(map, read, over)), None)
        if text is None:
            text = Text(map, read, known_real, crossed=over, options=options)
            texts.append(text)
        yield _tally(map, text, None if statistics is None else next(statistics), single), map


def _tally(map: AttentionMap, text: Text, known: KnownStatistics | None, single: bool) -> RunningSums:
    B, H, T, S = map.matrix
    found, sink_key = text.read(map, known)
    labels = {} if text.shuffled is None else text.shuffled.read_tokens(map)
    pieces = max(2, min(BLOCKS, T // 2)) if single else 1
    read = {
        "value": found,
        "null": text.null,
        "labels": labels,
        "rest": without_sink(text, map, found, sink_key),
    }
    sums = {
        name: in_pieces(part, (B, H, T), pieces, map.device).permute(0, 1, 3, 2, 4).flatten(-2)
        for name, part in read.items()
    }
    hits = torch.zeros(H, S + 1, dtype=torch.int64)
    hits.scatter_add_(1, sink_key.cpu().mT + 1, torch.ones(H, B, dtype=torch.int64))  # −1 goes to waste
    return RunningSums.of({name: x.cpu() for name, x in sums.items()}, hits[:, 1:])


def _check(map: AttentionMap, ids: Tensor | None, real: Tensor | None) -> None:
    if map.ndim != 4:
        raise ValueError(f"maps: expected (B, H, T, S) each, got {tuple(map.shape)}")
    B, _, T, S = map.matrix
    if ids is not None:
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.dtype.is_floating_point or len(ids) != B:
            came = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(f"ids: expected whole numbers ({B}, {S}), the tokens that were read, got {came}")
        if ids.shape[1] not in (T, S):
            raise ValueError(f"ids: expected ({B}, {S}), a token for each key, got {tuple(ids.shape)}")
    if real is not None:
        wanted = (B, S) if ids is None else tuple(ids.shape)
        if not isinstance(real, Tensor) or real.dtype != torch.bool or tuple(real.shape) != wanted:
            came = f"{tuple(real.shape)} {real.dtype}" if isinstance(real, Tensor) else type(real).__name__
            raise ValueError(f"real: expected booleans {wanted}, True for text, got {came}")


def total(texts: Iterable[Iterable[RunningSums]]) -> list[RunningSums]:
    """The tallies of all texts, added layer by layer."""
    sums: list[RunningSums] = []
    for layers in texts:
        found = list(layers)
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    return sums
