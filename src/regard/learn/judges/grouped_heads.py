"""Lesson 13: the bytes of a cache, query heads that share keys and values, and heads pooled into fewer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw
from regard.learn.judges.tables.guesses import guess_task
from regard.learn.lesson import UsualMistake

GIGABYTES = 2 * 80 * 64 * 128 * 8192 * 2 / 1e9
BYTES = "2 * layers * kv_heads * head_dim * tokens * bytes_per_number"
REPEATED = "k = k.repeat_interleave(H // G, dim=1), and v the same"
OWN_HEAD = f"query head h reads key/value head h // (H // G): {REPEATED}"
NEW_TOKENS = "visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)"
GROUPS = "groups = weight.view(kv_heads, num_heads // kv_heads, -1, d_model), then groups.mean(dim=1)"


def bytes_of(layers: int, kv_heads: int, head_dim: int, tokens: int, size: int) -> int:
    """Return the bytes of a cache."""
    return 2 * layers * kv_heads * head_dim * tokens * size


def interleaved(x: Tensor, times: int) -> Tensor:
    """Return key/value heads 0 0 1 1, one for each query head."""
    return x.repeat_interleave(times, dim=1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spread_keys: Callable[[Tensor, int], Tensor] = interleaved,
    spread_values: Callable[[Tensor, int], Tensor] = interleaved,
    diagonal: Callable[[int, int], int] = lambda T, S: S - T,
) -> Tensor:
    """Return causal attention in which each `spread` makes a key or value head for each query head."""
    T, S, times = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = spread_keys(k, times), spread_values(v, times)
    visible = torch.ones(T, S, dtype=torch.bool).tril(diagonal(T, S))
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def tiled(x: Tensor, times: int) -> Tensor:
    """Return key/value heads 0 1 0 1, where 0 0 1 1 is right."""
    return x.repeat(1, times, 1, 1)


def first(x: Tensor, times: int) -> Tensor:
    """Return key/value head 0 for every query head."""
    return x[:, :1].expand(-1, x.shape[1] * times, -1, -1)


def shifted(x: Tensor, times: int) -> Tensor:
    """Return key/value heads 0 1 1 1, each group a query head too early."""
    return torch.cat([interleaved(x, times)[:, 1:], x[:, -1:]], dim=1)


def pooled(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return the means of neighbouring heads."""
    return weight.view(kv_heads, num_heads // kv_heads, -1, weight.shape[-1]).mean(1).flatten(0, 1)


def pooled_apart(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return the means of heads that stand `kv_heads` apart."""
    return weight.view(num_heads // kv_heads, kv_heads, -1, weight.shape[-1]).mean(0).flatten(0, 1)


def first_of_group(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return the first head of each group, without the others."""
    return weight.view(kv_heads, num_heads // kv_heads, -1, weight.shape[-1])[:, 0].flatten(0, 1)


def summed(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return the sums of neighbouring heads."""
    return pooled(weight, num_heads, kv_heads) * (num_heads // kv_heads)


def first_group(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return the mean of the first group for every new head."""
    rows = len(weight) // num_heads
    return pooled(weight, num_heads, kv_heads)[:rows].repeat(kv_heads, 1)


def overlapping(weight: Tensor, num_heads: int, kv_heads: int) -> Tensor:
    """Return means of neighbours in which each group begins one head after the last, not a group after it."""
    heads, size = weight.view(num_heads, -1, weight.shape[-1]), num_heads // kv_heads
    return torch.cat([heads[g : g + size].mean(0) for g in range(kv_heads)])


def grouped_cases() -> tuple[Case, ...]:
    """Return groups of three and two, with new tokens after a cache, and one group for all."""
    q, k, v = draw(2, 6, 7, 4, seed=0), draw(2, 2, 7, 4, seed=1), draw(2, 2, 7, 4, seed=2)
    return (
        Case("with 6 query heads on 2", (q, k, v)),
        Case(
            "with 4 query heads on 2 and 3 new tokens",
            (draw(2, 4, 3, 4, seed=3), k, v),
            "The new tokens are the last of all, so the mask cannot begin at the first key.",
            NEW_TOKENS,
        ),
        Case("with 6 query heads on 1", (q, k[:, :1], v[:, :1])),
    )


CALCULATOR = FunctionTask(
    "cache_bytes",
    bytes_of,
    lambda: (
        Case("for 1,000 tokens of Llama 3.1 8B", (32, 8, 128, 1000, 2)),
        Case("for GPT-2 with 4 bytes for each number", (12, 12, 64, 1024, 4)),
    ),
    (Result("bytes", "", BYTES),),
    (
        WrongWay(lambda *x: bytes_of(*x) // 2, "values-not-counted"),
        WrongWay(
            lambda *x: 8 * bytes_of(*x), said="these are bits: bytes_per_number counts bytes", hint=BYTES
        ),
        WrongWay(
            lambda *x: bytes_of(*x) // x[0],
            said="this is the cache of one layer, and every layer has its own",
            hint=BYTES,
        ),
        WrongWay(
            lambda *x: bytes_of(*x) // x[4],
            said="this counts numbers, and each takes bytes_per_number bytes",
            hint=BYTES,
        ),
    ),
    "the size of any cache: only the key/value heads count, however many query heads there are.",
)
GROUPED = FunctionTask(
    "grouped_attention",
    attend,
    grouped_cases,
    (Result("out", "(B, H, T, D)", REPEATED),),
    (
        WrongWay(
            partial(attend, spread_keys=tiled, spread_values=tiled), "grouped-heads-tiled", "", OWN_HEAD
        ),
        WrongWay(
            partial(attend, spread_keys=first, spread_values=first), "first-group-for-all", "", OWN_HEAD
        ),
        WrongWay(
            partial(attend, spread_keys=tiled),
            "grouped-heads-tiled",
            "The keys are of the wrong group; the values are right.",
            OWN_HEAD,
        ),
        WrongWay(
            partial(attend, spread_values=tiled),
            "grouped-heads-tiled",
            "The values are of the wrong group; the keys are right.",
            OWN_HEAD,
        ),
        WrongWay(
            partial(attend, spread_keys=first),
            "first-group-for-all",
            "Every query head reads the keys of head 0; the values are right.",
            OWN_HEAD,
        ),
        WrongWay(
            partial(attend, spread_values=first),
            "first-group-for-all",
            "Every query head reads the values of head 0; the keys are right.",
            OWN_HEAD,
        ),
        WrongWay(
            partial(attend, spread_keys=shifted, spread_values=shifted),
            said="Each group begins one query head too early: heads 0 to H // G − 1 read key/value head 0.",
            hint=OWN_HEAD,
        ),
        WrongWay(
            partial(attend, diagonal=lambda T, S: T - S),
            said="S and T are exchanged in the mask: new tokens see no key at all, and softmax of an empty "
            "row is NaN.",
            hint=NEW_TOKENS,
        ),
        WrongWay(
            partial(attend, diagonal=lambda T, S: 0),
            "top-left-causal",
            "The mask begins at the first key. The new tokens are the last T of S, so the first of them sees "
            "S − T + 1 keys.",
            NEW_TOKENS,
        ),
        WrongWay(
            partial(attend, diagonal=lambda T, S: S - T - 1),
            "missing-diagonal",
            "No token sees itself, and the first sees nothing at all: softmax of an empty row is NaN.",
            NEW_TOKENS,
        ),
    ),
    "H maps from G key/value heads: the queries differ, the keys are shared.",
    (
        ("must match the size", f"q has H heads and k has G: {REPEATED}"),
        ("out of bounds for dimension 1", OWN_HEAD),
        ("Expected size for first two dimensions", f"q has H heads and k has G: {REPEATED}"),
    ),
    attends=lambda function: function,
    options={"causal": True},
)
POOL = FunctionTask(
    "pool_heads",
    pooled,
    lambda: (
        Case("from 6 heads to 2", (draw(24, 5, seed=4), 6, 2)),
        Case("from 4 heads to 1", (draw(16, 5, seed=5), 4, 1)),
    ),
    (Result("pooled", "(kv_heads * D, d_model)", GROUPS),),
    (
        WrongWay(
            pooled_apart,
            "grouped-heads-tiled",
            "The mean is over heads that stand apart, 0 2 4 and 1 3 5; a group is 0 1 2 and 3 4 5.",
            GROUPS,
        ),
        WrongWay(first_of_group, said="only the first head of each group is left", hint=GROUPS),
        WrongWay(summed, said="this is the sum of the heads of a group, not their mean", hint=GROUPS),
        WrongWay(
            overlapping,
            said="the groups overlap, 0 1 2 and 1 2 3; group g begins at head g * (num_heads // kv_heads)",
            hint=GROUPS,
        ),
        WrongWay(first_group, said="every new head is the mean of the first group", hint=GROUPS),
    ),
    "fewer heads from trained ones: a start from which a little training makes up for the loss.",
    (("is invalid for input of size", GROUPS),),
)
SAID = "the cache with keys and values for all 64 heads, in gigabytes,"
TASKS = (
    CALCULATOR.task(),
    GROUPED.task(),
    POOL.task(),
    guess_task(
        "gigabytes_without_groups",
        GIGABYTES,
        SAID,
        within=0.05,
        answers_to={
            2.7: "that is the cache with 8 key/value heads, which the question gives",
            GIGABYTES / 2: "only the keys are counted, or only the values",
        },
        hint="your own cache_bytes(80, 64, 128, 8192) / 1e9: how many times more heads are there?",
    ),
)
USUAL_MISTAKES = (
    UsualMistake(
        "grouped-heads-tiled",
        "k = k.repeat_interleave(H // G, dim=1)  #: the keys that each query head reads, (B, H, S, D)\n"
        "    v = v.repeat_interleave(H // G, dim=1)",
        "k = k.repeat(1, H // G, 1, 1)\n    v = v.repeat(1, H // G, 1, 1)",
    ),
    UsualMistake(
        "first-group-for-all",
        "k = k.repeat_interleave(H // G, dim=1)  #: the keys that each query head reads, (B, H, S, D)\n"
        "    v = v.repeat_interleave(H // G, dim=1)",
        "k = k[:, :1]\n    v = v[:, :1]",
    ),
    UsualMistake("values-not-counted", "2 * layers * kv_heads", "layers * kv_heads"),
)
