"""Random tokens, repeated: the text on which induction shows, since nothing else in it can be foreseen.

As in Olsson 2022: 25 random tokens four times over, after a start token, ten draws. A head that finds the
earlier copy of the current token and looks at what came next scores high; grammar and meaning cannot help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.head_scores import HeadScores, scores_and_null
from regard.heads.query_scores import Text
from regard.maps import AttentionMap


def repeated(
    vocab_size: int,
    *,
    start: int | None = None,
    tokens: int = 25,
    times: int = 4,
    draws: int = 10,
    seed: int = 0,
) -> Tensor:
    """Ids (draws, tokens · times), and one more before them if there is a `start` token.

    >>> repeated(50, start=0, tokens=3, times=2, draws=1).shape
    torch.Size([1, 7])
    """
    tokens = check_whole_number("tokens", tokens, 1, vocab_size - 1)  # so that none is drawn twice
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(draws):
        drawn = torch.randperm(vocab_size, generator=generator)
        rows.append(drawn[drawn != (-1 if start is None else start)][:tokens].repeat(times))
    ids = torch.stack(rows)
    return ids if start is None else torch.cat([ids.new_full((draws, 1), start), ids], 1)


def probe(
    maps: Callable[[Tensor], Iterable[AttentionMap]], ids: Tensor
) -> tuple[list[HeadScores], list[HeadScores]]:
    """The scores of every layer on ids (draws, T), and their nulls. `maps` is a model's, as `GPT.maps`."""
    found, nulls = [], []
    text: Text | None = None
    for map in maps(ids):
        if text is None or not text.suits(map, ids):  # layers that may see the same have the same null
            text = Text(map, ids)
        layer, null = scores_and_null(map, ids, alike=text)
        found.append(layer)
        nulls.append(null)
    return found, nulls
