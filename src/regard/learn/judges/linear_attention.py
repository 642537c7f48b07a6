"""Lesson 16: linear attention as a state that grows no larger, and the delta rule that corrects it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.judges.tables.made_tensors import all_pairs, tensors_made
from regard.learn.lesson import UsualMistake

WRITE = "state = state + torch.outer(k[t], v[t])"
READ = "out = (q[t] @ state) / (q[t] @ total)"
CORRECT = "state = state + beta[t] * torch.outer(k[t], v[t] - old)"
FIRST_SKIPPED = "The loop begins at token 1: the first token is token 0, and is never written or read."
PRODUCTS = ("aten::mv", "aten::mm", "aten::bmm")


def linear(q: Tensor, k: Tensor, v: Tensor, how: str = "") -> Tensor:
    """Return linear attention, all tokens at once; `how` is a way to go wrong."""
    scores, raw_q, raw_k = q @ k.mT, q, k
    q, k = (elu(x) + 1 for x in (q, k))
    if how == "first skipped":
        return torch.cat([torch.zeros_like(v[:1]), linear(raw_q[1:], raw_k[1:], v[1:])])
    weights = {
        "no feature": scores,
        "feature of k": raw_q @ k.mT,
        "feature of q": q @ raw_k.mT,
        "exponential": raw_q.exp() @ raw_k.exp().mT,
        "softmax": scores.exp(),
        "softmax of weights": (q @ k.mT).exp(),
        "feature of the score": elu(scores) + 1,
        "read by key": k @ k.mT,
        "roles exchanged": k @ q.mT,
    }.get(how, q @ k.mT)
    last = weights.diagonal().diag()
    seen = {
        "future": weights,
        "state of all": weights,
        "past hidden": weights.triu(),
        "before": weights.tril(-1),
        "state before": weights.tril(-1),
        "last": last,
        "last over all": last,
        "over columns": weights.tril() / weights.tril().sum(0),
    }.get(how, weights.tril())
    divisor = {
        "not divided": torch.ones_like(weights).diagonal().diag(),
        "over columns": torch.ones_like(weights).diagonal().diag(),
        "last over all": weights.tril(),
        "state before": weights.tril(),
        "total before": weights.tril(-1),
        "total of one": last,
        "total of all": weights,
        "state of all": weights.tril(),
        "total of raw keys": (q @ raw_k.mT).tril(),
        "one total": weights.tril().sum(0, keepdim=True).expand_as(weights),
        "number of tokens": torch.ones_like(weights).tril(),
        "total without query": k.sum(-1).expand_as(weights).tril(),
    }.get(how, seen)
    return seen @ v / divisor.sum(-1, keepdim=True)


def summed(q: Tensor, k: Tensor, v: Tensor, of_state: int = 0, of_total: int = 0) -> Tensor:
    """Return linear attention from running sums of states (T, D, E) and totals (T, D), each along an axis."""
    q, k = (elu(x) + 1 for x in (q, k))
    states = (k[:, :, None] * v[:, None, :]).cumsum(of_state)
    return torch.einsum("td,tde->te", q, states) / (q * k.cumsum(of_total)).sum(-1, keepdim=True)


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, how: str = "") -> tuple[Tensor, Tensor]:
    """Return the outputs and the last state of the delta rule; `how` is a way to go wrong."""
    state, outputs = torch.zeros(k.shape[-1], v.shape[-1]), []
    if how == "first skipped":
        out, last = delta(q[1:], k[1:], v[1:], beta[1:]) if len(q) > 1 else (v[1:], state)
        return torch.cat([torch.zeros_like(v[:1]), out]), last
    for q_t, k_t, v_t, b in zip(q, k, v, beta, strict=True):
        old = {"sum": 0 * v_t, "query": q_t @ state, "added": -(k_t @ state)}.get(how, k_t @ state)
        before = state
        change = {
            "no beta": torch.outer(k_t, v_t - old),
            "first beta": beta[0] * torch.outer(k_t, v_t - old),
            "away": b * torch.outer(k_t, old - v_t),
            "beta on new": torch.outer(k_t, b * v_t - old),
            "beta on old": torch.outer(k_t, v_t - b * old),
        }.get(how, b * torch.outer(k_t, v_t - old))
        kept = {"last": 0.0, "gate": 1 - b}.get(how, 1.0)
        state = kept * state + (b * torch.outer(k_t, v_t) if how == "gate" else change)
        if how == "own value fades":
            written = before + b * torch.outer(k_t, v_t)
            state = written - b * torch.outer(k_t, k_t @ written)
        query = {"by key": k_t, "feature": elu(q_t) + 1}.get(how, q_t)
        outputs.append(query @ (before if how == "before" else state))
    return torch.stack(outputs), state


def linear_cases() -> tuple[Case, ...]:
    """Return several tokens, and one."""
    q, k, v = draw(6, 4, seed=0), draw(6, 4, seed=1), draw(6, 3, seed=2)
    return Case("for six tokens", (q, k, v)), Case("for one token", (q[:1], k[:1], v[:1]))


def delta_cases() -> tuple[Case, ...]:
    """Return tokens that replace a part of what was there, and a key that comes again."""
    q, k, v = draw(6, 4, seed=0), normalize(draw(6, 4, seed=1), dim=-1), draw(6, 3, seed=2)
    beta = torch.tensor([0.7, 0.5, 0.8, 1.0, 0.3, 0.9])
    return (
        Case("with beta between 0 and 1", (q, k, v, beta)),
        Case("with the same key twice and beta 1", (q[:2], k[[0, 0]], v[:2], torch.ones(2))),
    )


SHAPES = (
    "torch.outer(k[t], v[t]) is (D, E), k[t] @ state and q[t] @ state are (E,), q[t] @ total and beta[t] are "
    "one number"
)
ERROR_HINTS = (
    ("non-empty TensorList", "of a text of one token nothing is read: for t in range(len(q)) begins at 0"),
    *(
        (part, SHAPES)
        for part in (
            "must match the size",
            "1D tensors expected",
            "size mismatch",
            "inconsistent tensor size",
            "out of bounds",
            "too many indices",
        )
    ),
)


LONG = 13  # tokens, more than a state has rows or columns


def all_scores(with_beta: bool, function: Callable[..., Any]) -> str:
    """Say that a query is compared with every key, if it is; "" if there is a state instead."""
    beta = [torch.full((LONG,), 0.5)] if with_beta else []
    k = normalize(draw(LONG, 4, seed=1), dim=-1)
    made = tensors_made(function, draw(LONG, 4, seed=0), k, draw(LONG, 3, seed=2), *beta)
    pairs = all_pairs(made, LONG, LONG)
    for tensor in made:
        # A row of scores at a time, q[t] @ k[: t + 1].mT, ends with one number for each token.
        if not pairs and tensor.operation in PRODUCTS and tensor.shape[-1:] == (LONG,):
            pairs = f"a row {tensor.shape}"
    if not pairs:
        return ""
    return (
        f"the numbers are right, and every query is compared with every key: {pairs} for {LONG} tokens. Now "
        "do it as the lesson does, with a state of D × E numbers that grows no larger"
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
        WrongWay(
            partial(linear, how="state before"),
            "new-token-unseen",
            "The state lacks token t, which `total` has.",
            f"{WRITE} before it is read",
        ),
        WrongWay(
            partial(linear, how="total of one"),
            "state-overwritten",
            "`total` holds the key of token t alone; it is the sum of all keys so far.",
            "total = total + k[t]",
        ),
        WrongWay(
            partial(linear, how="total of all"),
            "no-mask",
            "`total` is the sum of the keys of the whole text; token t has seen those up to t.",
            "total = total + k[t], inside the loop",
        ),
        WrongWay(
            partial(linear, how="state of all"),
            "no-mask",
            "The state holds the whole text; token t may read what was written up to t.",
            f"{WRITE}, inside the loop",
        ),
        WrongWay(
            partial(linear, how="one total"),
            said="this divides by one sum for all tokens; each divides by the sum of its own weights",
            hint=READ,
        ),
        WrongWay(
            partial(linear, how="over columns"),
            "softmax-over-queries",
            "Each column of weights is divided by its sum; the weights of one query are a row.",
            "weights.sum(dim=-1, keepdim=True) sums each row",
        ),
        WrongWay(
            partial(linear, how="first skipped"),
            "new-token-unseen",
            FIRST_SKIPPED,
            "for t in range(len(q))",
        ),
        *(
            WrongWay(
                partial(summed, of_state=of_state, of_total=of_total),
                said=f"{what} runs along the channels; it has to run along the tokens, the first axis",
                hint="torch.cumsum(…, dim=0)",
            )
            for of_state, of_total, what in (
                (1, 0, "the running sum of the states"),
                (2, 0, "the running sum of the states"),
                (0, 1, "the running sum of the keys"),
                (1, 1, "each running sum"),
                (2, 1, "each running sum"),
            )
        ),
        WrongWay(
            partial(linear, how="softmax of weights"),
            said="the weights are positive already: divide them by their sum, and take no softmax of them",
            hint=READ,
        ),
        WrongWay(
            partial(linear, how="number of tokens"),
            said="this divides by the number of tokens; the weights do not sum to that",
            hint=READ,
        ),
        WrongWay(
            partial(linear, how="total without query"),
            said="this divides by the sum of the keys alone; the weights are products with the query",
            hint=READ,
        ),
        WrongWay(
            partial(linear, how="no feature"),
            said="`feature` is not used: products of q and k may be negative, and their sum may be near 0",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="feature of k"),
            said="`feature` is not taken of q: products with it may be negative",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="feature of q"),
            said="`feature` is not taken of k: products with it may be negative",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="exponential"),
            said="the exponential is another feature than that of the lesson, which the file defines",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="total of raw keys"),
            said="`total` is the sum of the keys as they were given; the state holds feature(k)",
            hint="total = total + k[t], with the k of which `feature` was taken",
        ),
        WrongWay(
            partial(linear, how="softmax"),
            said="these are the weights of softmax, exp(q · k), which no sum over keys can be made for in "
            "advance; here a weight is feature(q) · feature(k)",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="feature of the score"),
            said="`feature` is taken of the score; it is taken of q and of k, before their product",
            hint="q, k = feature(q), feature(k)",
        ),
        WrongWay(
            partial(linear, how="read by key"),
            said="the state is read with the key; it is written with the key and read with the query",
            hint=READ,
        ),
        WrongWay(
            partial(linear, how="roles exchanged"),
            "query-key-swapped",
            "The state is written with the query and read with the key.",
            f"{WRITE}; {READ}",
        ),
        WrongWay(
            partial(linear, how="past hidden"),
            "transposed-mask",
            "Each token reads itself and the tokens after it: the triangle lies on the wrong side.",
            f"{WRITE}, token by token from the first",
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
    shortcut=partial(all_scores, False),
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
            partial(delta, how="first skipped"),
            "new-token-unseen",
            FIRST_SKIPPED,
            "for t in range(len(q))",
        ),
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
            partial(delta, how="first beta"),
            said="every token takes the beta of the first one; each has its own",
            hint=CORRECT,
        ),
        WrongWay(
            partial(delta, how="away"),
            said="the difference is taken the other way round: the state moves away from the new value",
            hint=CORRECT,
        ),
        WrongWay(
            partial(delta, how="feature"),
            said="`feature` belongs to linear attention; here keys have length 1, and may be negative",
            hint="out = q[t] @ state",
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
            partial(delta, how="by key"),
            said="the output is read with the key; the query asks",
            hint="out = q[t] @ state",
        ),
        WrongWay(
            partial(delta, how="own value fades"),
            said="the old value is read after the new one is written, so the new one is taken out as well",
            hint=f"first old = k[t] @ state, then {CORRECT}",
        ),
        WrongWay(
            partial(delta, how="gate"),
            said="the whole state fades, also what stands at other keys; only the old value of this key goes",
            hint=CORRECT,
        ),
    ),
    "a state that can be corrected: a key that comes again gets its new value.",
    ERROR_HINTS,
    shortcut=partial(all_scores, True),
)
SAID = "the number of tokens after which the cache is as large as the state"
TASKS = (
    LINEAR.task(),
    DELTA.task(),
    guess_task(
        "tokens_until_the_cache_is_as_large",
        128 * 128 / (2 * 128),
        SAID,
        within=0.0,
        answers_to={
            128.0: "128 keys alone have 128 × 128 numbers, and a cache does not hold keys alone",
            65.0: "one token too many: with 65 the cache is larger than the state, not as large",
            16384.0: "these are the numbers in the state; a token brings many numbers at once",
        },
        hint="the state's 128 · 128 numbers, divided by the numbers that one token adds to a cache",
    ),
)
USUAL_MISTAKES = (
    UsualMistake("sum-not-divided", "(q[t] @ state) / (q[t] @ total)", "q[t] @ state"),
    UsualMistake("state-overwritten", "state + torch.outer(k[t], v[t])  #", "torch.outer(k[t], v[t])  #"),
    UsualMistake("old-value-kept", "torch.outer(k[t], v[t] - old)", "torch.outer(k[t], v[t])"),
    UsualMistake("old-read-by-query", "old = k[t] @ state", "old = q[t] @ state"),
)
