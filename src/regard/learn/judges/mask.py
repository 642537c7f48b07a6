"""Lesson 4: causal attention, and a test for leaks, tried on attentions that the learner has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal, prefix, rule, window
from regard.learn.judges.common.inputs import input_generator
from regard.learn.judges.self_attention import MAX_SEQ_LEN, SIZES, TRIAL, judge_self_attention
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial

NAME = "CausalSelfAttention"
DONE = "softmax(Q Kᵀ / √d + M) V: no output depends on a later token, so every token can be trained at once."
B, T, D = 2, 6, 8  # of the tokens that a test for leaks gets

Weigh = Callable[[Tensor, Tensor], Tensor]  # the weights (…, T, T) of queries and keys (…, T, D)


SLIGHT = "in one of its earlier outputs one number rises with the last token"


class Suspect(NamedTuple):
    """An attention that a test for leaks is tried on.

    `reason` completes "… leaks:" or "… does not leak:", `hint` says what a test that is wrong here does.
    """

    weigh: Weigh
    leaks: bool
    reason: str
    hint: str


def masked_before(mask: Mask) -> Weigh:
    """Softmax of the scores that a mask leaves: right for every mask."""
    return lambda q, k: torch.softmax(
        _scores(q, k).masked_fill(~mask.to_dense(q.shape[-2]), -math.inf), dim=-1
    )


def masked_after(q: Tensor, k: Tensor) -> Tensor:
    """Softmax of all scores, and zeros above the diagonal afterwards."""
    return torch.softmax(_scores(q, k), dim=-1).tril()


def softmax_over_queries(q: Tensor, k: Tensor) -> Tensor:
    """Causal scores, and a softmax that sums over each column."""
    return torch.softmax(_scores(q, k).masked_fill(~causal.to_dense(q.shape[-2]), -math.inf), dim=-2)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(k.shape[-1])


AGAIN = (
    "compare the outputs before and after a change, and return True only if one of an earlier token has moved"
)
TEXTS = "out is (B, T, head_dim): out[:t] takes texts, out[:, :t] takes tokens"
OUTPUTS = "look at the outputs: what a weight depends on cannot be seen in the weight itself"
MOVED = "not torch.allclose(out[:, :t], out_changed[:, :t])"
EXACT = (
    "One remark: it compares bit for bit, and on another device or at another length right outputs differ in "
    "the last digits; torch.allclose allows for that."
)
EACH = "change each token after the first in turn, and return False only after the loop"
ONE_AHEAD = rule(lambda b, h, q, k: k <= q + 1)
FIRST_SEES_LAST = rule(lambda b, h, q, k: (q == 0) & (k == T - 1))
SUSPECTS = (
    Suspect(masked_before(causal), False, "a token sees itself and earlier ones", AGAIN),
    Suspect(masked_before(causal & window(2)), False, "a token sees itself and the one before", AGAIN),
    Suspect(masked_before(full), True, "every token sees every token", AGAIN),
    Suspect(masked_before(ONE_AHEAD), True, "each token also sees the next one", AGAIN),
    Suspect(
        masked_after,
        True,
        "its weights above the diagonal are 0, but they are set to 0 after softmax, which divided by a sum "
        "over all tokens",
        OUTPUTS,
    ),
    Suspect(
        softmax_over_queries,
        True,
        "its weights above the diagonal are 0, but each column is divided by a sum over later queries",
        OUTPUTS,
    ),
    Suspect(
        masked_before(causal | FIRST_SEES_LAST),
        True,
        "the first token sees the last one, and no other token sees a later one",
        f"look at every output before t, not at one of them: {MOVED}",
    ),
    Suspect(
        masked_before(causal),
        True,
        SLIGHT,
        f"any number that moves is a leak, up or down: {MOVED}",
    ),
    Suspect(
        masked_before(causal | prefix(3)),
        True,
        "the first three tokens see each other, while the last token is hidden from all others",
        "change each token in turn, not only the last one",
    ),
)


def judge_class(cls: Any, module: ModuleType) -> Outcome:
    """Judge the learner's class as a causal attention."""
    return judge_self_attention(NAME, cls, masked_before(causal), DONE, causal=True)


def judge_test(function: Any, module: ModuleType) -> Outcome:
    """Try the learner's test on every suspect."""
    generator = input_generator()
    x, *projections = (torch.randn(*shape, generator=generator) for shape in ((B, T, D), *[(D, D)] * 3))
    if unchanged := _find_unchanged(function, x, projections):
        raise NotDoneError(unchanged, hint=EACH)
    for suspect in SUSPECTS:
        tokens = x.clone()
        slight = x[:, -1] if suspect.reason == SLIGHT else None
        verdict = function(_attention(suspect.weigh, projections, slight), tokens)
        if not torch.equal(tokens.detach(), x):
            message = "it changes x itself, so that every later comparison is with other tokens"
            raise NotDoneError(message, hint="changed[:, t] = torch.randn_like(x[:, t]), not x[:, t]")
        # torch.any gives a tensor of one boolean.
        if isinstance(verdict, Tensor) and verdict.numel() == 1:
            verdict = bool(verdict)
        if not isinstance(verdict, bool):
            raise NotDoneError(f"it returned {verdict!r:.60}; expected True or False", hint=AGAIN)
        if verdict and not suspect.leaks:
            message = f"it accuses an attention that does not leak: {suspect.reason}"
            hint = TEXTS if _compares_texts(function, suspect, x, projections) else suspect.hint
            raise NotDoneError(message, hint=hint)
        if suspect.leaks and not verdict:
            raise NotDoneError(f"it misses a leak: {suspect.reason}", hint=suspect.hint)
    leaks = sum(suspect.leaks for suspect in SUSPECTS)
    right = len(SUSPECTS) - leaks
    done = f"your test found the leaks of {leaks} wrong attentions, and none in {right} right ones."
    if _is_exact(function, x, projections):
        done = f"{done} {EXACT}"
    return Outcome("finds_leak", "done", done)


def _is_exact(function: Any, x: Tensor, projections: list[Tensor]) -> bool:
    """Whether a test takes a difference in the last digit for a leak."""
    attention, calls = _attention(masked_before(causal), projections), []

    def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = attention(x)
        calls.append(x)
        return out * (1 + len(calls) % 2 * 2 * torch.finfo(out.dtype).eps), weights

    return bool(function(rounded, x.clone()))


def _find_unchanged(function: Any, x: Tensor, projections: list[Tensor]) -> str:
    """Say which tokens a test never changes, of those that another could read; "" if there are none."""
    attention, seen = _attention(masked_before(causal), projections), []

    def watched(x: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return attention(x)

    given = x.clone()
    leaks = function(watched, given)
    # A test by gradients calls the attention once.
    if len(seen) < 2 or any(tokens.shape != x.shape for tokens in seen):
        return ""
    changed = torch.stack([(tokens != seen[0]).any(-1).any(0) for tokens in seen]).any(0)  # (T,)
    if not changed.any():
        return "nothing is changed: every call gets the same tokens, so no output can move"
    # One that accuses a right attention has ended early, which is told below, and so is another x.
    if leaks or changed[1:].all() or not torch.equal(given.detach(), x):
        return ""
    kept = [str(t) for t in range(1, T) if not changed[t]]
    return f"tokens {', '.join(kept)} of 0 to {T - 1} are never changed, so a leak from there is missed"


def _compares_texts(function: Any, suspect: Suspect, x: Tensor, projections: list[Tensor]) -> bool:
    """Whether a test takes texts for tokens, `out[:t]`: right if tokens are the first axis."""

    def tokens_first(weigh: Weigh) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def attention(x: Tensor) -> tuple[Tensor, Tensor]:
            out, weights = _attention(weigh, projections)(x)
            return out.transpose(0, 1), weights

        return attention

    right, leaking = tokens_first(suspect.weigh), tokens_first(masked_before(full))

    return function(right, x.clone()) is False and bool(function(leaking, x.clone()))


def _attention(
    weigh: Weigh, projections: list[Tensor], last: Tensor | None = None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """An attention of the form attention(x) -> (out, weights).

    With the last token `last`, one number of the first output rises if that token becomes another.
    """

    def attention(x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x @ projection / math.sqrt(D) for projection in projections)
        weights = weigh(q, k)
        out = weights @ v
        if last is not None:
            # It rises with every change of the last token, and has a gradient where nothing is changed.
            out[:, 0, 0] = out[:, 0, 0] + ((x[:, -1] - last).abs() + 0.1 * (x[:, -1] - last)).sum(-1)
        return out, weights

    return attention


def _trial(weigh: Weigh) -> Trial:
    """An attention of these weights, and tokens, to run a test for leaks on."""
    return Trial((_attention(weigh, [2 * torch.eye(D)] * 3), torch.eye(D)[None, :T]))


TASKS = (
    Task(NAME, judge_class, trials=(replace(TRIAL, init={**SIZES, "max_seq_len": MAX_SEQ_LEN}),)),
    Task(
        "finds_leak",
        judge_test,
        trials=(
            *(_trial(masked_before(mask)) for mask in (full, causal, ONE_AHEAD)),
            _trial(softmax_over_queries),
        ),
    ),
)
