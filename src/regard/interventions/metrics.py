"""Metrics: one number for a run of a model over a text, by which a plain run and an edited one are compared.

This file knows a model's output and its tokens; it knows neither edits nor heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.recorder.tokens_of_maps.tokens import encode_ids

Metric = Literal["loss", "logit_diff"] | Callable[[Any, Tensor], float]
"""The loss, the difference of two logits, or a function of the model's output and its token ids (T,)."""
TokenPositions = Literal["repeated", "first"] | Tensor | Callable[[Tensor], Tensor]
"""Tokens whose loss counts: a name, a boolean mask (T,), or a function that makes one of ids (T,)."""


class TextMetric:
    """A metric with its options, as a function of a model's output and the ids (T,) of a text.

    - `metric`: "loss", "logit_diff" or a function (output, ids) → float.
    - `positions`: for the loss: the tokens that count; None for all.
    - `tokens`: for "logit_diff": the two tokens, as ids or as texts of one token each.
    - `tokenizer`: for tokens that are texts.
    """

    def __init__(
        self,
        metric: Metric = "loss",
        *,
        positions: TokenPositions | None = None,
        tokens: Sequence[int | str] | None = None,
        tokenizer: Any = None,
    ) -> None:
        if not callable(metric) and metric not in ("loss", "logit_diff"):
            raise ValueError(f'metric: expected "loss", "logit_diff" or a function, got {metric!r}')
        if positions is not None and metric != "loss":
            raise ValueError('positions: expected beside metric="loss" only, whose mean they restrict')
        if tokens is None and metric == "logit_diff":
            raise ValueError('tokens: expected two tokens (a, b) for metric="logit_diff", got none')
        if tokens is not None and metric != "logit_diff":
            raise ValueError('tokens: expected only with metric="logit_diff", whose two tokens they are')
        if tokens is not None and (isinstance(tokens, str) or len(tokens) != 2):
            raise ValueError(f"tokens: expected two tokens (a, b), got {tokens!r}")
        self.metric, self.positions = metric, positions
        self.tokens = None if tokens is None else tuple(_token_id(x, tokenizer) for x in tokens)

    def __call__(self, output: Any, ids: Tensor) -> float:
        if callable(self.metric):
            value: Any = self.metric(output, ids)
            try:
                return float(value)
            # `float` raises for a tensor of several numbers.
            except (TypeError, ValueError):
                got = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"metric: expected a function that returns one number, got {got}") from None
        logits = next_token_logits(output, ids)  # (T, V)
        if self.tokens is not None:
            a, b = self.tokens
            if not 0 <= min(a, b) <= max(a, b) < logits.shape[-1]:
                raise ValueError(f"tokens: expected ids from 0 to {logits.shape[-1] - 1}, got {a} and {b}")
            # Two close logits in half precision would cancel.
            return float(logits[-1, a].double() - logits[-1, b].double())
        return self._mean_loss(logits, ids)

    def _mean_loss(self, logits: Tensor, ids: Tensor) -> float:
        """The mean cross entropy of the tokens that count, in nats."""
        if len(ids) < 2:
            raise ValueError(f"texts: expected at least two tokens, the second to predict, got {len(ids)}")
        losses = cross_entropy(logits[:-1].double(), ids[1:].to(logits.device), reduction="none")  # (T − 1,)
        if self.positions is None:
            return float(losses.mean())
        counts = select_tokens(ids.cpu(), self.positions)[1:]  # nothing predicts the first token
        if not bool(counts.any()):
            raise ValueError(
                "positions: expected some token after the first in every text, got a text without"
            )
        return float(losses[counts.to(losses.device)].mean())


def select_tokens(ids: Tensor, positions: TokenPositions) -> Tensor:
    """Return which tokens of a text count, boolean (T,).

    >>> ids = torch.tensor([5, 7, 5, 9, 7])
    >>> select_tokens(ids, "repeated")
    tensor([False, False,  True, False,  True])
    """
    if isinstance(positions, str):
        if positions not in ("repeated", "first"):
            raise ValueError(
                f'positions: expected "repeated", "first", a mask or a function, got {positions!r}'
            )
        occurred = (ids[:, None] == ids).tril(-1).any(1)
        return occurred if positions == "repeated" else ~occurred
    mask = positions(ids) if callable(positions) else positions
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != ids.shape:
        got = f"{tuple(mask.shape)} {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"positions: expected booleans ({len(ids)},), one for each token, got {got}")
    return mask.cpu()


def next_token_logits(output: Any, ids: Tensor) -> Tensor:
    """Return the logits (T, V) after each of ids (T,), from what a model returned for one text."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != (1, len(ids)):
        got = f"{tuple(logits.shape)}" if isinstance(logits, Tensor) else type(output).__name__
        raise ValueError(
            f"model: expected logits (1, {len(ids)}, V) of the next token, got {got}: load it with "
            "AutoModelForCausalLM, or write a metric of your own, a function (output, ids)"
        )
    return logits[0].detach()


def _token_id(token: int | str, tokenizer: Any) -> int:
    """Return a token's id; a text must be a single token."""
    if isinstance(token, int):
        return token
    if tokenizer is None:
        raise ValueError(f"tokens: expected a tokenizer beside {token!r}, or ids")
    ids = encode_ids(tokenizer, token)
    if len(ids) != 1:
        raise ValueError(f"tokens: expected a text of one token, but {token!r} has {len(ids)}")
    return ids[0]
