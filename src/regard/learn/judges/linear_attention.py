"""Lesson 16: linear attention as a state that grows no larger, and the delta rule that corrects it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.lesson import UsualMistake

WRITE = "state = state + torch.outer(k[t], v[t])"
READ = "out = (q[t] @ state) / (q[t] @ total)"
CORRECT = "state = state + beta[t] * torch.outer(k[t], v[t] - old)"


def linear(q: Tensor, k: Tensor, v: Tensor, how: str = "") -> Tensor:
    """Return linear attention, all tokens at once; `how` is a way to go wrong."""
    q, k = (elu(x) + 1 for x in (q, k))
    weights = q @ k.mT
    seen = {
        "future": weights,
        "before": weights.tril(-1),
        "last": weights.diagonal().diag(),
    }.get(how, weights.tril())
    if how == "last over all":
        return weights.diagonal()[:, None] * v / weights.tril().sum(-1, keepdim=True)
    if how == "total before":
        return seen @ v / weights.tril(-1).sum(-1, keepdim=True)
    return seen @ v if how == "not divided" else seen @ v / seen.sum(-1, keepdim=True)


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, how: str = "") -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of the delta rule; `how` is a way to go wrong."""
    state, outputs = torch.zeros(k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, b in zip(q, k, v, beta, strict=True):
        old = {"sum": 0 * v_t, "query": q_t @ state, "added": -(k_t @ state)}.get(how, k_t @ state)
        before = state
        change = {
            "no beta": torch.outer(k_t, v_t - old),
            "beta on new": torch.outer(k_t, b * v_t - old),
            "beta on old": torch.outer(k_t, v_t - b * old),
        }.get(how, b * torch.outer(k_t, v_t - old))
        kept = {"last": 0.0, "gate": 1 - b}.get(how, 1.0)
        state = kept * state + (b * torch.outer(k_t, v_t) if how == "gate" else change)
        outputs.append(q_t @ (before if how == "before" else state))
    return torch.stack(outputs), state


def linear_cases() -> tuple[Case, ...]:
    """Return several tokens, and one."""
    q, k, v = draw(6, 4, seed=0), draw(6, 4, seed=1), draw(6, 3, seed=2)
    return Case("for six tokens", (q, k, v)), Case("for one token", (q[:1], k[:1], v[:1]))


def delta_cases() -> tuple[Case, ...]:
    """Return tokens that replace a part of what was there, and a key that comes again."""
    q, k, v = draw(6, 4, seed=0), normalize(draw(6, 4, seed=1), dim=-1), draw(6, 3, seed=2)
    beta = torch.tensor([1.0, 0.5, 0.8, 1.0, 0.3, 0.9])
    return (
        Case("with beta between 0 and 1", (q, k, v, beta)),
        Case("with the same key twice and beta 1", (q[:2], k[[0, 0]], v[:2], torch.ones(2))),
    )


SHAPES = (
    "torch.outer(k[t], v[t]) is (D, E), k[t] @ state and q[t] @ state are (E,), q[t] @ total and beta[t] are "
    "one number"
)
ERROR_HINTS = tuple(
    (part, SHAPES)
    for part in ("must match the size", "1D tensors expected", "size mismatch", "inconsistent tensor size")
)
LINEAR = FunctionTask(
    "linear_attention",
    linear,
    linear_cases,
    (Result("outputs", "(T, E)", f"{WRITE}; total = total + k[t]; {READ}"),),
    (
        WrongWay(
            partial(linear, how="not divided"),
            "sum-not-divided",
            "The output is not divided by the sum of its weights: it grows with the number of tokens.",
            READ,
        ),
        WrongWay(
            partial(linear, how="before"),
            "new-token-unseen",
            "The state is read before token t is written into it; the first token divides 0 by 0.",
            f"first {WRITE}, then {READ}",
        ),
        WrongWay(
            partial(linear, how="total before"),
            "new-token-unseen",
            "`total` lacks the key of token t, which the state has.",
            "total = total + k[t] before it is used",
        ),
        WrongWay(partial(linear, how="last"), "state-overwritten"),
        WrongWay(partial(linear, how="last over all"), "state-overwritten", hint=WRITE),
        WrongWay(
            partial(linear, how="future"),
            "no-mask",
            "Every token reads the whole text: write and read token by token.",
            f"{WRITE}, inside the loop",
        ),
    ),
    "attention with a state of D × E numbers, however long the text is.",
    ERROR_HINTS,
)
DELTA = FunctionTask(
    "delta_rule",
    delta,
    delta_cases,
    (
        Result("outputs", "(T, E)", f"old = k[t] @ state; {CORRECT}; out = q[t] @ state"),
        Result("state", "(D, E)", f"old = k[t] @ state; {CORRECT}"),
    ),
    (
        WrongWay(partial(delta, how="sum"), "old-value-kept"),
        WrongWay(
            partial(delta, how="added"), "old-value-kept", "The old value is added, not taken out.", CORRECT
        ),
        WrongWay(partial(delta, how="query"), "old-read-by-query"),
        WrongWay(
            partial(delta, how="before"),
            "new-token-unseen",
            "The state is read before it is corrected: each token misses its own value.",
            f"first {CORRECT}, then out = q[t] @ state",
        ),
        WrongWay(partial(delta, how="last"), "state-overwritten", hint=CORRECT),
        WrongWay(
            partial(delta, how="no beta"), said="beta is not used: the old is always replaced", hint=CORRECT
        ),
        WrongWay(
            partial(delta, how="beta on new"),
            said="beta belongs to the whole difference: here the old value is taken out whatever beta is",
            hint=CORRECT,
        ),
        WrongWay(
            partial(delta, how="beta on old"),
            said="beta belongs to the whole difference: here the new value is written whatever beta is",
            hint=CORRECT,
        ),
        WrongWay(
            partial(delta, how="gate"),
            said="the whole state fades, also what stands at other keys; only the old value of this key goes",
            hint=CORRECT,
        ),
    ),
    "a state that can be corrected: a key that comes again gets its new value.",
    ERROR_HINTS,
)
SAID = "the number of tokens whose keys and values are 128 × 128 numbers"
TASKS = (
    LINEAR.task(),
    DELTA.task(),
    guess_task(
        "tokens_until_the_state_is_smaller",
        128 * 128 / (2 * 128),
        SAID,
        within=0.0,
        answers_to={128.0: "128 tokens have 128 keys and 128 values: that is twice as much"},
    ),
)
USUAL_MISTAKES = (
    UsualMistake("sum-not-divided", "(q[t] @ state) / (q[t] @ total)", "q[t] @ state"),
    UsualMistake("state-overwritten", "state + torch.outer(k[t], v[t])  #", "torch.outer(k[t], v[t])  #"),
    UsualMistake("old-value-kept", "torch.outer(k[t], v[t] - old)", "torch.outer(k[t], v[t])"),
    UsualMistake("old-read-by-query", "old = k[t] @ state", "old = q[t] @ state"),
)
