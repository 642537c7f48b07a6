"""Lesson 13: the bytes of a cache, query heads that share keys and values, and heads pooled into fewer."""

from __future__ import annotations

from regard.learn.judges.tables.functions import Case, FunctionTask, Result, WrongWay, draw, usual
from regard.learn.judges.tables.guesses import guess_task

GIGABYTES = 2 * 80 * 64 * 128 * 8192 * 2 / 1e9
REPEATED = "k = k.repeat_interleave(H // G, dim=1), and v the same"
OWN_HEAD = f"query head h reads key/value head h // (H // G): {REPEATED}"
NEW_TOKENS = "visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)"
SHARED = "k.repeat_interleave(H // G, dim=1)"
TILED, FIRST = "grouped-heads-tiled", "first-group-for-all"
VIEW = "weight.view(kv_heads, num_heads // kv_heads, -1, d_model)"
GROUPS = f"groups = {VIEW}, then groups.mean(dim=1)"
MEAN = "groups.mean(dim=1)"


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
    "grouped_heads",
    "cache_bytes",
    lambda: (
        Case("for 1,000 tokens of Llama 3.1 8B", (32, 8, 128, 1000, 2)),
        Case("for GPT-2 with 4 bytes for each number", (12, 12, 64, 1024, 4)),
    ),
    (Result("bytes", ""),),
    (
        WrongWay("2 * layers", "layers", "values-not-counted"),
        WrongWay("2 * layers", "16 * layers", said="these are bits: bytes_per_number counts bytes"),
        WrongWay(
            "layers * kv_heads",
            "kv_heads",
            said="this is the cache of one layer, and every layer has its own",
        ),
        WrongWay(
            "kv_heads * head_dim * tokens",
            "(kv_heads + head_dim) * tokens",
            said="heads and width are added; each head has a vector of that width, so they are multiplied",
        ),
        WrongWay(
            "bytes_per_number  #",
            "bytes_per_number / 1e6  #",
            said="these are megabytes, millions of bytes; asked for are bytes",
        ),
        WrongWay(
            " * bytes_per_number", "", said="this counts numbers, and each takes bytes_per_number bytes"
        ),
    ),
    "the size of any cache: only the key/value heads count, however many query heads there are.",
)
GROUPED = FunctionTask(
    "grouped_heads",
    "grouped_attention",
    grouped_cases,
    (Result("out", "(B, H, T, D)", REPEATED),),
    (
        *(
            WrongWay(SHARED, keys, mistake, said, OWN_HEAD).for_values_too()
            for keys, mistake, said in (
                ("k.repeat(1, H // G, 1, 1)", TILED, ""),
                ("k[:, :1]", FIRST, ""),
                (
                    f"{SHARED}[:, [*range(1, H), -1]]",
                    "",
                    "Each group begins one query head too early: heads 0 to H // G − 1 read key/value "
                    "head 0.",
                ),
            )
        ),
        *(
            WrongWay(
                SHARED.replace("k", x, 1),
                wrong.replace("k", x, 1),
                mistake,
                f"{said.format(these)} The {others} are right.",
                OWN_HEAD,
            )
            for wrong, mistake, said in (
                ("k.repeat(1, H // G, 1, 1)", TILED, "The {} are of the wrong group."),
                ("k[:, :1]", FIRST, "Every query head reads the {} of head 0."),
            )
            for x, these, others in (("k", "keys", "values"), ("v", "values", "keys"))
        ),
        WrongWay(" / math.sqrt(D)", "", "no-scale"),
        WrongWay("math.sqrt(D)", "D", "scaled-by-width"),
        WrongWay("dim=-1", "dim=-2", "softmax-over-queries"),
        WrongWay(".masked_fill(~visible, -torch.inf)", "", "no-mask"),
        WrongWay(
            "tril(S - T)",
            "tril(T - S)",
            said="S and T are exchanged in the mask: new tokens see no key at all, and softmax of an empty "
            "row is NaN.",
        ),
        WrongWay(
            "tril(S - T)",
            "tril()",
            "top-left-causal",
            "The mask begins at the first key. The new tokens are the last T of S, so the first of them sees "
            "S − T + 1 keys.",
        ),
        WrongWay(
            "tril(S - T)",
            "tril(S - T - 1)",
            "missing-diagonal",
            "No token sees itself, and the first sees nothing at all: softmax of an empty row is NaN.",
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
    "grouped_heads",
    "pool_heads",
    lambda: (
        Case("from 6 heads to 2", (draw(24, 5, seed=4), 6, 2)),
        Case("from 4 heads to 1", (draw(16, 5, seed=5), 4, 1)),
    ),
    (Result("pooled", "(kv_heads * D, d_model)", GROUPS),),
    (
        WrongWay(
            f"{VIEW}\n{MEAN}",
            "weight.view(num_heads // kv_heads, kv_heads, -1, d_model)\ngroups.mean(dim=0)",
            TILED,
            "The mean is over heads that stand apart, 0 2 4 and 1 3 5; a group is 0 1 2 and 3 4 5.",
            GROUPS,
        ),
        *(
            WrongWay(MEAN, f"groups[:, {at}", said=f"only the {which} head of each group is left")
            for at, which in (("0]", "first"), ("-1]", "last"), ("-1] / groups.shape[1]", "last"))
        ),
        WrongWay(
            MEAN,
            "groups.sum(dim=1) / num_heads",
            said="a sum over a group is divided by the number of all heads",
        ),
        WrongWay(
            f"{VIEW}\n{MEAN}",
            "weight.view(-1, num_heads, d_model).transpose(0, 1).unflatten(0, (kv_heads, -1))\n" + MEAN,
            said="the rows of one head stand together, D of them: every num_heads-th row is of another head",
            hint=GROUPS,
        ),
        WrongWay(MEAN, "groups.sum(dim=1)", said="this is the sum of the heads of a group, not their mean"),
        WrongWay(
            VIEW,
            "weight.view(num_heads, -1, d_model).unfold(0, num_heads // kv_heads, 1)"
            "[:kv_heads].movedim(3, 1)",
            said="the groups overlap, 0 1 2 and 1 2 3; group g begins at head g * (num_heads // kv_heads)",
        ),
        WrongWay(
            MEAN, f"{MEAN}[:1].repeat(kv_heads, 1, 1)", said="every new head is the mean of the first group"
        ),
    ),
    "fewer heads from trained ones: a start from which a little training makes up for the loss.",
    (
        ("is invalid for input of size", GROUPS),
        ("must match the size", "each head has D = len(weight) // num_heads rows of d_model numbers"),
    ),
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
USUAL_MISTAKES = usual((GROUPED, CALCULATOR), TILED, FIRST, "values-not-counted")
