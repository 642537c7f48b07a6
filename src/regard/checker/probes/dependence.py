"""Dependence: which outputs change with which inputs? What a mask or a grouping does, without an oracle.

Two implementations are compared by what each row and each head sees; a difference of that kind has a name
even for attention that the oracle does not know.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession


def visible_tokens(session: CheckSession, question: Question) -> Tensor | None:
    """Return which outputs depend on which tokens of the keys and values: boolean (T, S).

    In self-attention a token is also a query, so the diagonal is always True. None if the code fails.
    """
    return _dependence(session, question, -2)


def visible_heads(session: CheckSession, question: Question) -> Tensor | None:
    """Return which query heads depend on which key/value heads: boolean (H, G). None if the code fails."""
    return _dependence(session, question, -3)


def _dependence(session: CheckSession, question: Question, axis: int) -> Tensor | None:
    """Return which slices of the output along an axis depend on which slices of keys and values along it."""
    question = question.to(session.dtype)
    with torch.no_grad():
        before = session.subject.run(question).answer
        columns = []
        for index in range(question.k.shape[axis]):
            after = session.subject.run(change_tokens(question, axis, index)).answer
            if before is None or after is None:
                return None
            # A number that becomes NaN depends on the token, too, and NaN > 1e-9 is False.
            changed = (after.output - before.output).abs().nan_to_num(1.0) > 1e-9
            columns.append(changed.movedim(axis, 0).flatten(1).any(1))
    return torch.stack(columns, 1)


def change_tokens(question: Question, axis: int, index: int) -> Question:
    """Return the question with one slice of its keys and values changed; of x, in self-attention."""

    def change(x: Tensor) -> Tensor:
        changed = x.clone()
        slice_ = changed.select(axis, index)
        # The sign changes, which no norm before the projections undoes.
        slice_.copy_(slice_ * -1.5 + 1.0)
        return changed

    if question.is_self_attention:
        return question.map_inputs(change)
    k = change(question.k)
    return replace(question, k=k, v=k if question.v is question.k else change(question.v))


def name_difference(question: Question, got: Tensor, want: Tensor) -> str | None:
    """Return the mistake by which rows see the keys `got` instead of `want`, both (T, S), or None."""
    T, S = want.shape
    extra, missing = got & ~want, want & ~got
    every = torch.ones(T, S, dtype=torch.bool)
    own = _diagonal(every, S - T)  # each query's own position
    if not bool((extra | missing).any()):
        return None
    if question.padding is not None and bool((extra & ~question.padding.all(0)).any()):
        return "padded-keys-leak"
    if question.window is not None:
        edges = [_diagonal(every, offset) for offset in range(-T, S - T)]
        if any(torch.equal(extra | missing, edge) for edge in edges):
            return "window-off-by-one"
        if bool(extra.any()) and not bool((extra & every.triu(S - T + 1)).any()):
            return "window-dropped"
    if torch.equal(missing, own) and not bool(extra.any()):
        return "missing-diagonal"
    if torch.equal(extra, _diagonal(every, S - T + 1)) and not bool(missing.any()):
        return "one-token-ahead"
    # In self-attention an output depends on its own token by its query, whatever the mask hides.
    if question.mask is not None and torch.equal(got | own, ~want | own):
        return "inverted-mask"
    if T == S and torch.equal(got, want.mT):
        return "transposed-mask"
    if T < S and torch.equal(got, want & every.tril()):
        return "top-left-causal"
    return "no-mask" if not bool(missing.any()) and (T == S or bool(got.all())) else None


def _diagonal(every: Tensor, offset: int) -> Tensor:
    return every.tril(offset).triu(offset)
