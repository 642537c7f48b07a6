"""Batches whose items have lengths of their own, as packed and paged kernels take them: answered one by one.

The keys that an item reads beyond its own are a mistake, which `reach` names: "all" (the whole cache), "page"
(to the end of its last page), "next" (the first key of the next item), "next, beside the mask" (the same,
while the mask counts only its own keys), "previous" (the last key of the previous item) or "short" (its own
last key is missing).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question


def answer_items(
    question: Question, answer: Callable[[Question], Answer], reach: str = "own", *, together: bool = False
) -> Answer:
    """Answer every item of a batch alone, in its own length; rows beyond it are free.

    `answer` answers a question of one item. With `together` the items are one long sequence, a mistake.
    """
    lengths = question.all_lengths()
    if together:
        parts = _split_answer(answer(_joined(question)), lengths[0])
    else:
        parts = [answer(_item(question, b, reach)) for b in range(len(lengths[0]))]
    return _pad(parts, question)


def _item(question: Question, b: int, reach: str) -> Question:
    """Return the question of one item, with the keys that it reads."""
    T, S = (n[b] for n in question.all_lengths())
    q = question.q[b : b + 1, :, :T]
    k, v = (_keys(x, question, b, S, reach) for x in (question.k, question.v))
    surplus = k.shape[2] - S if reach == "next, beside the mask" else 0
    return replace(question, q=q, k=k, v=v, lengths=None, layout="", surplus=surplus)


def _keys(x: Tensor, question: Question, b: int, S: int, reach: str) -> Tensor:
    """Return the keys or values (1, G, S, D) that item b reads."""
    own = x[b : b + 1, :, :S]
    if reach == "all":
        return x[b : b + 1]
    if reach == "page" and question.page is not None:
        return to_whole_pages(own, question.page)
    if reach.startswith("next") and b + 1 < x.shape[0]:
        return torch.cat([own, x[b + 1 : b + 2, :, :1]], 2)
    if reach == "previous" and b > 0:
        last = question.all_lengths()[1][b - 1] - 1
        return torch.cat([x[b - 1 : b, :, last : last + 1], own], 2)
    return own[:, :, :-1] if reach == "short" and S > 1 else own


def to_whole_pages(x: Tensor, page: int) -> Tensor:
    """Lengthen (…, S, D) to a whole number of pages. What the tail holds is left over from earlier texts."""
    missing = -x.shape[-2] % page
    return torch.cat([x, 1.0 - 2.0 * x[..., :1, :].expand(*x.shape[:-2], missing, x.shape[-1])], -2)


def _joined(question: Question) -> Question:
    """Return the question with its items as one long sequence."""
    queries, keys = question.all_lengths()

    def join(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return torch.cat([x[b : b + 1, :, :n] for b, n in enumerate(lengths)], 2)

    q, k, v = join(question.q, queries), join(question.k, keys), join(question.v, keys)
    return replace(question, q=q, k=k, v=v, lengths=None, layout="")


def _split_answer(answer: Answer, lengths: tuple[int, ...]) -> list[Answer]:
    """Return the answers of the items of one long sequence."""
    outputs = torch.split(answer.output, list(lengths), 2)
    free = [None] * len(lengths) if answer.free is None else torch.split(answer.free, list(lengths), 2)
    return [Answer(output, free=rows) for output, rows in zip(outputs, free, strict=True)]


def _pad(parts: list[Answer], question: Question) -> Answer:
    """Return the answers of the items as one batch; what lies beyond an item's length is free."""
    B, H, T, E = (*question.q.shape[:3], question.v.shape[-1])
    output = question.q.new_zeros(B, H, T, E)
    free = torch.ones(B, H, T, 1, dtype=torch.bool, device=output.device)
    lse = question.q.new_zeros(B, H, T)
    for b, part in enumerate(parts):
        rows = part.output.shape[2]
        output[b, :, :rows] = part.output[0]
        free[b, :, :rows] = False if part.free is None else part.free[0]
        if part.lse is not None:
            lse[b, :, :rows] = part.lse[0]
    whole = bool((~free).all())
    has_lse = all(part.lse is not None for part in parts)
    return Answer(output, None, lse if has_lse else None, None if whole else free)
