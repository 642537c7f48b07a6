"""Lesson 16: linear attention as a state that grows no larger, and the delta rule that corrects it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import normalize

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw, usual
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.judges.tables.made_tensors import all_pairs, tensors_made

WRITE = "state = state + torch.outer(k[t], v[t])"
READ = "out = (q[t] @ state) / (q[t] @ total)"
CORRECT = "state = state + beta[t] * torch.outer(k[t], v[t] - old)"
OLD, ASK = "old = k[t] @ state", "out = q[t] @ state"
FEATURES, RESULT = "feature(q), feature(k)", "return torch.stack(outputs)"
PRODUCTS = ("aten::mv", "aten::mm", "aten::bmm")
SKIPPED = WrongWay(
    "range(len(q))\noutputs = []",
    "range(1, len(q))\noutputs = [torch.zeros(v.shape[-1])]",
    "new-token-unseen",
    "The loop begins at token 1: the first token is token 0, and is never written or read.",
    "for t in range(len(q))",
)


def weighted(weights: str, features: str = FEATURES) -> tuple[str, str]:
    """Return the edit after which a matrix of weights is divided by its sums, with other features."""
    mix = f"w = {weights}; return w @ v / w.sum(dim=-1, keepdim=True)"
    return f"{FEATURES}\n{RESULT}", f"{features}\n{mix}"


def running_sums(of_state: int, of_total: int) -> str:
    """Return the code of running sums of states (T, D, E) and totals (T, D), each along an axis."""
    states = f"(k[:, :, None] * v[:, None, :]).cumsum({of_state})"
    mix = f"torch.einsum('td,tde->te', q, {states})"
    return f"return {mix} / (q * k.cumsum({of_total})).sum(dim=-1, keepdim=True)"


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
    "linear_attention",
    linear_cases,
    (Result("outputs", "(T, E)"),),
    (
        WrongWay(
            READ,
            ASK,
            "sum-not-divided",
            "The output is not divided by the sum of its weights: it grows with the number of tokens.",
        ),
        WrongWay(
            f"{WRITE}\ntotal = total + k[t]\n{READ}",
            f"{READ}\n{WRITE}; total = total + k[t]\npass",
            "new-token-unseen",
            "The state is read before token t is written into it; the first token divides 0 by 0.",
            f"first {WRITE}, then {READ}",
        ),
        WrongWay(
            "(q[t] @ total)",
            "(q[t] @ (total - k[t]))",
            "new-token-unseen",
            "`total` lacks the key of token t, which the state has.",
            "total = total + k[t] before it is used",
        ),
        WrongWay(
            "(q[t] @ state)",
            "(q[t] @ (state - torch.outer(k[t], v[t])))",
            "new-token-unseen",
            "The state lacks token t, which `total` has.",
            f"{WRITE} before it is read",
        ),
        WrongWay(
            "total + k[t]",
            "k[t]",
            "state-overwritten",
            "`total` holds the key of token t alone; it is the sum of all keys so far.",
        ),
        WrongWay(
            "total + k[t]",
            "k.sum(dim=0)",
            "no-mask",
            "`total` is the sum of the keys of the whole text; token t has seen those up to t.",
            "total = total + k[t], inside the loop",
        ),
        WrongWay(
            WRITE,
            "state = k.mT @ v",
            "no-mask",
            "The state holds the whole text; token t may read what was written up to t.",
            f"{WRITE}, inside the loop",
        ),
        WrongWay(
            f"{READ}\n{RESULT}",
            f"{ASK}\n{RESULT} / (q @ k.mT).tril().sum()",
            said="this divides by one sum for all tokens; each divides by the sum of its own weights",
            hint=READ,
        ),
        WrongWay(
            RESULT,
            "return (q @ k.mT).tril() / (q @ k.mT).tril().sum(dim=0) @ v",
            "softmax-over-queries",
            "Each column of weights is divided by its sum; the weights of one query are a row.",
            "weights.sum(dim=-1, keepdim=True) sums each row",
        ),
        SKIPPED,
        *(
            WrongWay(
                RESULT,
                running_sums(of_state, of_total),
                said=f"{what} runs along the channels; it has to run along the tokens, the first axis",
                hint="torch.cumsum(…, dim=0)",
            )
            for of_state, of_total, what in (
                (1, 0, "the running sum of the states"),
                (2, 0, "the running sum of the states"),
                (0, 1, "the running sum of the keys"),
                (2, 1, "each running sum"),
            )
        ),
        WrongWay(
            *weighted("(q @ k.mT).exp().tril()"),
            said="the weights are positive already: divide them by their sum, and take no softmax of them",
            hint=READ,
        ),
        WrongWay(
            "/ (q[t] @ total)",
            "/ (q[t] @ total) / (t + 1)",
            said="the weights sum to 1 already: their mix is a sum, and here it is a mean, divided once more",
        ),
        WrongWay(
            "/ (q[t] @ total)",
            "/ (t + 1)",
            said="this divides by the number of tokens; the weights do not sum to that",
        ),
        WrongWay(
            "/ (q[t] @ total)",
            "/ total.sum()",
            said="this divides by the sum of the keys alone; the weights are products with the query",
        ),
        WrongWay(
            FEATURES,
            "q, k",
            said="`feature` is not used: products of q and k may be negative, and their sum may be near 0",
        ),
        WrongWay(
            FEATURES, "q, feature(k)", said="`feature` is not taken of q: products with it may be negative"
        ),
        WrongWay(
            FEATURES, "feature(q), k", said="`feature` is not taken of k: products with it may be negative"
        ),
        WrongWay(
            FEATURES,
            "torch.exp(q), torch.exp(k)",
            said="the exponential is another feature than that of the lesson, which the file defines",
        ),
        WrongWay(
            f"q, k = {FEATURES}\ntotal + k[t]",
            f"given = k; q, k = {FEATURES}\ntotal + given[t]",
            said="`total` is the sum of the keys as they were given; the state holds feature(k)",
            hint="total = total + k[t], with the k of which `feature` was taken",
        ),
        WrongWay(
            *weighted("(q @ k.mT).exp().tril()", "q, k"),
            said="these are the weights of softmax, exp(q · k), which no sum over keys can be made for in "
            "advance; here a weight is feature(q) · feature(k)",
            hint=f"q, k = {FEATURES}",
        ),
        WrongWay(
            *weighted("feature(q @ k.mT).tril()", "q, k"),
            said="`feature` is taken of the score; it is taken of q and of k, before their product",
            hint=f"q, k = {FEATURES}",
        ),
        WrongWay(
            READ,
            "out = (k[t] @ state) / (k[t] @ total)",
            said="the state is read with the key; it is written with the key and read with the query",
        ),
        WrongWay(
            *weighted("(k @ q.mT).tril()"),
            "query-key-swapped",
            "The state is written with the query and read with the key.",
            f"{WRITE}; {READ}",
        ),
        WrongWay(
            *weighted("(q @ k.mT).triu()"),
            "transposed-mask",
            "Each token reads itself and the tokens after it: the triangle lies on the wrong side.",
            f"{WRITE}, token by token from the first",
        ),
        WrongWay(WRITE, "state = torch.outer(k[t], v[t])", "state-overwritten"),
        WrongWay(
            f"{WRITE}\ntotal + k[t]",
            "state = torch.outer(k[t], v[t])\nk[t]",
            "state-overwritten",
            "Each token gets its own value alone: both sums have to run along the tokens, the first axis.",
        ),
        WrongWay(
            *weighted("q @ k.mT"),
            "no-mask",
            "Every token reads the whole text: write and read token by token.",
            f"{WRITE}, inside the loop",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (WRITE, "state = state + torch.outer(q[t], v[t])", "the state is written with the query"),
                (WRITE, "state = state", "the state stays 0: no token is ever added to it"),
                ("total + k[t]", "total + 1", "`total` counts tokens; it is the sum of their keys"),
                ("total + k[t]", "total + q[t]", "`total` is a sum of queries; it is one of keys"),
                (
                    "total + k[t]",
                    "total + k[t].sum()",
                    "a key is a vector: `total` adds its sum to each channel",
                ),
                (READ, "out = torch.softmax(q[t] @ state, dim=-1)", "what is read are values, not scores"),
            )
        ),
    ),
    "attention with a state of D × E numbers, however long the text is.",
    ERROR_HINTS,
    shortcut=partial(all_scores, False),
)
DELTA = FunctionTask(
    "linear_attention",
    "delta_rule",
    delta_cases,
    (Result("outputs", "(T, E)"), Result("state", "(D, E)", f"{OLD}; {CORRECT}")),
    (
        WrongWay("v[t] - old", "v[t]", "old-value-kept"),
        WrongWay(
            "state = state + beta[t]",
            "state = (1 - beta[t]) * state + beta[t]",
            said="the old value is taken out twice: once by v − old, and once more by the state that fades",
            hint=CORRECT,
        ),
        WrongWay("v[t] - old", "v[t] + old", "old-value-kept", "The old value is added, not taken out."),
        WrongWay(OLD, "old = q[t] @ state", "old-read-by-query"),
        SKIPPED,
        WrongWay(
            f"{CORRECT}\n{ASK}",
            f"{ASK}; {CORRECT}\npass",
            "new-token-unseen",
            "The state is read before it is corrected: each token misses its own value.",
            f"first {CORRECT}, then {ASK}",
        ),
        WrongWay("state + beta[t]", "beta[t]", "state-overwritten"),
        WrongWay("beta[t] * ", "", said="beta is not used: the old is always replaced"),
        WrongWay("beta[t]", "beta[0]", said="every token takes the beta of the first one; each has its own"),
        WrongWay(
            "v[t] - old",
            "old - v[t]",
            said="the difference is taken the other way round: the state moves away from the new value",
        ),
        WrongWay(
            ASK,
            "out = feature(q[t]) @ state",
            said="`feature` belongs to linear attention; here keys have length 1, and may be negative",
        ),
        WrongWay(
            "beta[t] * torch.outer(k[t], v[t] - old)",
            "torch.outer(k[t], beta[t] * v[t] - old)",
            said="beta belongs to the whole difference: here the old value is taken out whatever beta is",
        ),
        WrongWay(
            "beta[t] * torch.outer(k[t], v[t] - old)",
            "torch.outer(k[t], v[t] - beta[t] * old)",
            said="beta belongs to the whole difference: here the new value is written whatever beta is",
        ),
        WrongWay(ASK, "out = k[t] @ state", said="the output is read with the key; the query asks"),
        WrongWay(
            f"{OLD}\n{CORRECT}",
            "state = state + beta[t] * torch.outer(k[t], v[t])\n"
            "state = state - beta[t] * torch.outer(k[t], k[t] @ state)",
            said="the old value is read after the new one is written, so the new one is taken out as well",
            hint=f"first {OLD}, then {CORRECT}",
        ),
        WrongWay(
            CORRECT,
            "state = (1 - beta[t]) * state + beta[t] * torch.outer(k[t], v[t])",
            said="the whole state fades, also what stands at other keys; only the old value of this key goes",
        ),
        *(
            WrongWay(right, wrong, said=said)
            for right, wrong, said in (
                (
                    OLD,
                    "old = v[t - 1]",
                    "the old value is what the state says to this key, not the last value",
                ),
                (CORRECT, CORRECT.replace("k[t]", "q[t]"), "the correction is written with the query"),
            )
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
USUAL_MISTAKES = usual(
    (LINEAR, DELTA), "sum-not-divided", "state-overwritten", "old-value-kept", "old-read-by-query"
)
