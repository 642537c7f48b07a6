"""Random tokens, repeated: the text for measuring induction, since nothing else in it can be predicted.

As in Olsson 2022: about 25 random tokens four times over, after a start token, ten draws. A head that finds
the earlier copy of the current token and attends to the token after it scores high; grammar and meaning
cannot help. Unlike there, every draw of `draw_repeats` has a period of its own, from 15 to 35: with one
period for all, a head that attends 24 tokens back, whatever is there, would score as an induction head does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.measures.head_scores import HeadScores, scores_and_null
from regard.heads.measures.query_scores import TextScorer
from regard.maps import AttentionMap


def repeated(
    vocab_size: int,
    *,
    start: int | None = None,
    tokens: int = 25,
    times: int = 4,
    draws: int = 10,
    vary: int = 0,
    seed: int = 0,
) -> Tensor:
    """Draw ids (draws, tokens · times), with a `start` token before them if it is not None.

    Each draw is `tokens` different random tokens below `vocab_size`, repeated `times` times. With `vary` the
    draws have periods of their own, evenly spaced from `tokens` − `vary` to `tokens` + `vary`, and are cut to
    the same length, so that nothing stands at one distance in all of them. `seed` makes it reproducible.

    >>> repeated(50, start=0, tokens=3, times=2, draws=1).shape
    torch.Size([1, 7])
    """
    tokens = check_whole_number("tokens", tokens, 1, vocab_size - 1)  # so that none is drawn twice
    vary = check_whole_number("vary", vary, 0, min(tokens - 1, vocab_size - 1 - tokens))
    periods = torch.linspace(tokens - vary, tokens + vary, draws, device="cpu") if draws > 1 else [tokens]
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for period in [round(float(x)) for x in periods]:
        drawn = torch.randperm(vocab_size, generator=generator, device="cpu")
        # The start token stands before a text, and nowhere in it.
        drawn = drawn[drawn != (-1 if start is None else start)][:period]
        rows.append(drawn.repeat(-(-tokens * times // period))[: tokens * times])
    ids = torch.stack(rows)
    return ids if start is None else torch.cat([ids.new_full((draws, 1), start), ids], 1)


def draw_repeats(
    vocab_size: int, start: int | None, *, max_length: int | None = None, draws: int = 10, seed: int = 0
) -> Tensor:
    """Draw ids as `repeated` does: 25 ± 10 tokens four times, fewer if vocabulary or context have no room.

    `max_length` is the context length of the model that reads them, None if it has no limit.

    >>> draw_repeats(50, 0, max_length=21, draws=2).shape
    torch.Size([2, 21])
    """
    room = min(25, vocab_size - 2, (max_length - 1) // 4 if max_length else 25)
    # A vocabulary of two tokens still gives a text.
    room = max(room, 1)
    vary = max(min(room * 2 // 5, vocab_size - 1 - room), 0)
    return repeated(vocab_size, start=start, tokens=room, draws=draws, vary=vary, seed=seed)


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
