"""Random tokens, repeated: the text for measuring induction, since nothing else in it can be predicted.

As in Olsson 2022: 25 random tokens four times over, after a start token, ten draws. A head that finds the
earlier copy of the current token and attends to the token after it scores high; grammar and meaning cannot
help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.head_scores import HeadScores, scores_and_null
from regard.heads.query_scores import TextScorer
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
    """Draw ids (draws, tokens · times), with a `start` token before them if it is not None.

    Each draw is `tokens` different random tokens below `vocab_size`, repeated `times` times; `seed` makes it
    reproducible.

    >>> repeated(50, start=0, tokens=3, times=2, draws=1).shape
    torch.Size([1, 7])
    """
    tokens = check_whole_number("tokens", tokens, 1, vocab_size - 1)  # so that none is drawn twice
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(draws):
        drawn = torch.randperm(vocab_size, generator=generator, device="cpu")
        rows.append(drawn[drawn != (-1 if start is None else start)][:tokens].repeat(times))
    ids = torch.stack(rows)
    return ids if start is None else torch.cat([ids.new_full((draws, 1), start), ids], 1)


def draw_repeats(
    vocab_size: int, start: int | None, *, max_length: int | None = None, draws: int = 10, seed: int = 0
) -> Tensor:
    """Draw ids as `repeated` does: 25 tokens four times, fewer if vocabulary or context have no room for it.

    `max_length` is the context length of the model that reads them, None if it has no limit.

    >>> draw_repeats(50, 0, max_length=21, draws=2).shape
    torch.Size([2, 21])
    """
    room = min(25, vocab_size - 2, (max_length - 1) // 4 if max_length else 25)
    return repeated(vocab_size, start=start, tokens=max(room, 1), draws=draws, seed=seed)


def probe(
    maps: Callable[[Tensor], Iterable[AttentionMap]], ids: Tensor
) -> tuple[list[HeadScores], list[HeadScores]]:
    """The scores of every layer on ids (draws, T), and their baselines.

    `maps(ids)` gives the maps of every layer, as `GPT.maps` does.
    """
    layers, nulls = [], []
    scorer: TextScorer | None = None
    for m in maps(ids):
        if scorer is None or not scorer.fits(m, ids):  # layers with the same mask have the same baseline
            scorer = TextScorer(m, ids)
        scores, null = scores_and_null(m, ids, scorer=scorer)
        layers.append(scores)
        nulls.append(null)
    return layers, nulls
