"""The query that a reader sees first: one of a word that attends strongly to another word.

This file knows one head's map and the tokens of its axes; it does not know how the page draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.maps import AttentionMap, LinearAttentionMap
from regard.spans.text_spans import is_special

CANDIDATES = 128  # queries that are compared, spread over the text
SINK_SHARE = 0.25  # of the attention of the candidates, above which a key counts as a sink


def telling_query(
    m: AttentionMap | LinearAttentionMap, queries: Sequence[str] | None, keys: Sequence[str] | None
) -> int:
    """Return the query of a head that says most: its strongest edge is to a word that is no sink.

    Line ends, spaces, punctuation and special tokens are taken only if the text has nothing else.

    Arguments:
        m: one head's map, (1, 1, T, S).
        queries: the tokens of the queries; None if they are not known.
        keys: the tokens of the keys, likewise.
    """
    _, _, T, S = m.matrix
    words = {token for token in {*(queries or ()), *(keys or ())} if is_word(token)}
    positions = [t for t in range(T) if queries is None or queries[t] in words]
    # The first quarter has little before it to attend to.
    positions = [t for t in positions if t >= T // 4] or positions or [T - 1]
    candidates = positions[:: -(-len(positions) // CANDIDATES)]
    rows = torch.tensor(candidates, device=m.device)
    # abs: weights of linear layers have either sign.
    weights = m.tile(rows).reshape(len(candidates), S).abs().float().cpu()  # (n, S)
    mean = weights.mean(0)
    # Keys that say nothing: the first, a sink, the query itself, and what is no word.
    weights[:, mean > SINK_SHARE] = 0
    # The first key is the sink of most models, also where its mean stays below the limit.
    weights[:, 0] = 0
    own = (rows.cpu() + S - T).clamp(0, S - 1)
    weights[torch.arange(len(candidates), device="cpu"), own] = 0
    if keys is not None:
        weights[:, torch.tensor([token not in words for token in keys], device="cpu")] = 0
    return candidates[int(weights.amax(1).argmax())]


def is_word(token: str) -> bool:
    """Whether a token has letters or digits and is no special token.

    >>> [is_word(token) for token in (" cat", "7", "\\n", ".", "<s>", "")]
    [True, True, False, False, False, False]
    """
    return any(x.isalpha() or x.isdecimal() for x in token) and not is_special(token)
