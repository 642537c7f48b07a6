"""`Predictions`: what a model expects after each token of a text, and what it gave the token that follows.

The logits (B, T, V) of one forward pass are reduced a few positions at a time: no second copy of them is
made. This file knows logits and token ids; it does not know models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.support.characters import show_invisible
from regard.support.table import MOST_ROWS, Table

LIKELIEST = 10  # tokens that are kept for each position
MOST_WORDS = 3  # of them that a notebook shows
CHUNK = 1 << 24  # logits that are reduced at a time: 64 MiB in float32


@dataclass(frozen=True, repr=False)
class Predictions:
    """The next-token predictions of a causal language model at each of T positions.

    Position t predicts the token at t + 1. Losses are in nats. `k` is 10, or the vocabulary's size if that
    is smaller.
    """

    likeliest: Tensor
    """The ids of the likeliest next tokens, the likeliest first, int64 (B, T, k)."""
    probabilities: Tensor
    """Their probabilities, float32 (B, T, k)."""
    losses: Tensor
    """-log p of the token that follows, float32 (B, T - 1); NaN where it or the position is padding."""
    ranks: Tensor
    """Its rank among all tokens, from 1, int64 (B, T - 1); 0 where the loss is NaN."""
    words: dict[int, str]
    """The text of each token in `likeliest`, by its id; empty without a tokenizer."""

    @property
    def loss(self) -> Tensor:
        """The mean loss of each text of the batch, (B,)."""
        return self.losses.nanmean(-1)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: what is expected after each position of the first text."""
        T = self.likeliest.shape[1] if len(self.likeliest) else 0
        rows = [(t, self._expected(t), *self._following(t)) for t in range(min(T, MOST_ROWS))]
        names = ("after position", "likeliest tokens", "probability of what follows", "its rank")
        first = " of the first text" if len(self.likeliest) > 1 else ""
        more = f" The first {MOST_ROWS} of {T:,} positions." if T > MOST_ROWS else ""
        caption = f"What the model expects after each token{first}.{more}"
        return Table(names, rows).output(repr(self), caption)

    def _expected(self, position: int) -> str:
        """Return the likeliest tokens after a position of the first text in words."""
        ids = self.likeliest[0, position, :MOST_WORDS].tolist()
        shares = self.probabilities[0, position, :MOST_WORDS].tolist()
        return ", ".join(
            f"{show_invisible(self.word(token))} {p:.1%}" for token, p in zip(ids, shares, strict=True)
        )

    def _following(self, position: int) -> tuple[str, str]:
        """Return the probability and the rank of the token after a position; empty where they are unknown."""
        if position >= self.losses.shape[1] or not bool(self.losses[0, position].isfinite()):
            return "", ""
        return f"{float((-self.losses[0, position]).exp()):.1%}", f"{int(self.ranks[0, position]):,}"

    def __repr__(self) -> str:
        B, T, _ = self.likeliest.shape
        texts = "1 text" if B == 1 else f"{B} texts"
        losses = ", ".join(f"{loss:.2f}" for loss in self.loss.tolist()[:4]) + (", …" if B > 4 else "")
        return f"Predictions({texts} of {T:,} tokens, mean loss {losses})"

    def word(self, token: int) -> str:
        """Return the text of a token in `likeliest`, or its id as `<17>` if the text is not known."""
        return self.words.get(token, f"<{token}>")


def predictions_from(
    logits: Tensor,
    ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    decode: Callable[[Tensor], list[str]] | None = None,
) -> Predictions:
    """Reduce logits (B, T, V) for the tokens `ids` (B, T) to the likeliest tokens, losses and ranks.

    Arguments:
        logits: those of the next token at each position, on any device.
        ids: the tokens that were read.
        attention_mask: False for padding, (B, T); None where nothing is padding.
        decode: turns the ids of n tokens, (n,), into their texts.
    """
    is_logits = logits.ndim == 3 and logits.shape[:2] == ids.shape and logits.is_floating_point()
    if not is_logits or not logits.numel():
        raise ValueError(
            f"predictions: expected a model that gives logits (B, T, V) for its tokens {tuple(ids.shape)}, "
            f"got {logits.dtype} of {tuple(logits.shape)}: capture it without predictions=True"
        )
    B, T, V = logits.shape
    if bool((ids >= V).any()):
        raise ValueError(
            f"predictions: expected logits for every token of the text, whose largest id is "
            f"{int(ids.max())}, got {V} of them: capture it without predictions=True"
        )
    k = min(LIKELIEST, V)
    following = torch.cat([ids[:, 1:], ids[:, :1]], 1).to(logits.device)  # (B, T); the last is dropped below
    step = max(1, CHUNK // (B * V))
    parts = [
        _reduce(logits[:, first : first + step], following[:, first : first + step], k)
        for first in range(0, T, step)
    ]
    likeliest, probabilities, losses, ranks = (torch.cat(x, 1).cpu() for x in zip(*parts, strict=True))
    losses, ranks = losses[:, :-1], ranks[:, :-1]  # nothing follows the last token
    if attention_mask is not None:
        known = attention_mask.bool().cpu()
        padded = ~(known[:, 1:] & known[:, :-1])  # (B, T - 1)
        losses, ranks = losses.masked_fill(padded, torch.nan), ranks.masked_fill(padded, 0)
    shown = torch.unique(likeliest)
    words = {} if decode is None else dict(zip(shown.tolist(), decode(shown), strict=True))
    return Predictions(likeliest, probabilities, losses, ranks, words)


def _reduce(logits: Tensor, following: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return likeliest (B, t, k), probabilities (B, t, k), losses (B, t) and ranks (B, t) of t positions."""
    scores = logits.detach().float()  # (B, t, V)
    lse = scores.logsumexp(-1)  # (B, t)
    values, likeliest = scores.topk(k, dim=-1)
    own = scores.gather(-1, following[..., None])  # (B, t, 1)
    ranks = 1 + (scores > own).sum(-1)
    return likeliest, (values - lse[..., None]).exp(), lse - own[..., 0], ranks
