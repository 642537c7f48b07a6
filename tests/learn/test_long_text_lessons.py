"""Lessons 13 to 17: what learners do beside the usual mistakes, and the answer that they get."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

from regard.learn.course import get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.judges import grouped_heads, linear_attention, online_softmax, selection, window
from regard.learn.judges.tables.edits import define
from regard.learn.judges.tables.functions import TOLERANCE, FunctionTask, WrongWay
from regard.learn.judges.tables.verdicts import largest_difference
from regard.learn.lesson import Outcome
from tests.learn.in_process import judged
from tests.sampling import share

JUDGES = (grouped_heads, window, online_softmax, linear_attention, selection)
FUNCTIONS = [thing for judge in JUDGES for thing in vars(judge).values() if isinstance(thing, FunctionTask)]

BYTES = "return 2 * layers * kv_heads * head_dim * tokens * bytes_per_number"
KEYS = "k = k.repeat_interleave(H // G, dim=1)"
GROUPED_HEADS = {
    "not repeated": ((KEYS, "k = k"), "q has H heads and k has G"),
    "a fraction": ((KEYS, "k = k.repeat_interleave(H / G, dim=1)"), "repeat_interleave(H // G"),
    "expanded": ((KEYS, "k = k.expand(-1, H, -1, -1)"), "repeat_interleave(H // G"),
    "one layer": ((BYTES, BYTES.replace("layers * ", "")), "the cache of one layer"),
    "numbers": ((BYTES, BYTES.replace(" * bytes_per_number", "")), "this counts numbers"),
    "queries too": ((BYTES, BYTES.replace("2 *", "3 *")), "1.5 times what it should be"),
    "megabytes": ((BYTES, BYTES + " / 1e6"), "1e-06 times"),
    "apart": (("groups.mean(dim=1)", "groups.mean(dim=0)"), "expected `pooled` (8, 5)"),
    "summed": (("groups.mean(dim=1)", "groups.sum(dim=1)"), "not their mean"),
    "first head": (("groups.mean(dim=1)", "groups[:, 0]"), "only the first head"),
    "one number": (("groups.mean(dim=1)", "groups.mean()"), "pooled = groups.mean(dim=1)"),
}
NEAR, VISIBLE = "key > query - window", "causal & (near | first)"
KEPT = "k = torch.cat([k[..., :sinks, :], k[..., -window:, :]], dim=-2)"
WINDOW = {
    "too narrow": ((NEAR, "key > query - window + 1"), "only window − 1 keys"),
    "no window": ((NEAR, "key < query + window"), "window-dropped"),
    "one axis": (("torch.arange(S - T, S)[:, None]", "torch.arange(S - T, S)"), "one row for each query"),
    "too many rows": (("torch.arange(S - T, S)", "torch.arange(S)"), "expected `mask` (3, 9)"),
    "one sink more": (("key < sinks", "key <= sinks"), "There is one sink too many"),
    "and, or": ((VISIBLE, "causal and (near or first)"), "& and | join masks"),
    "future": ((VISIBLE, "near | first"), "Later keys are visible"),
    "numbers": ((VISIBLE, f"({VISIBLE}).float()"), "expected torch.bool"),
    "inverted": ((VISIBLE, f"~({VISIBLE})"), "inverted-mask"),
    "keys only": ((KEPT, "k = k"), "expected `k` (2, 3, 6, 4)"),
    "short too": (("k.shape[-2] <= sinks + window", "False"), "fewer keys than sinks + window stays"),
    "other axis": ((KEPT, KEPT.replace(", dim=-2", "")), "the keys are on axis -2"),
    "latest first": (
        (KEPT + "  #", "k = torch.cat([k[..., -window:, :], k[..., :sinks, :]], dim=-2)  #"),
        "line 36: k = torch.cat([k[..., :sinks, :], k[..., -window:, :]], dim=-2)",
    ),
    "all 12": (("layers = 9", "layers = 12"), "counts each token itself"),
}
HIGHEST, SHRINK = "torch.maximum(highest, scores.amax(dim=-1))", "torch.exp(highest - new_highest)"
LSE = "torch.logaddexp(lse_a, lse_b)"
ONLINE_SOFTMAX = {
    "upside down": ((SHRINK, "torch.exp(new_highest - highest)"), "Every number is NaN"),
    "mix not shrunk": (("mixed * shrink[..., None] +", "mixed +"), "the mix is not"),
    "of this block": ((HIGHEST, "scores.amax(dim=-1)"), "of this block alone"),
    "places too": ((HIGHEST, "torch.maximum(highest, scores.max(dim=-1))"), "gives the places"),
    "Python's max": ((HIGHEST, "max(highest, scores.amax(dim=-1))"), "Python's max cannot"),
    "highest 0": (("q.new_full(q.shape[:-1], -torch.inf)", "q.new_zeros(q.shape[:-1])"), "begins at 0"),
    "Python's exp": ((SHRINK, "math.exp(highest - new_highest)"), "math.exp takes one number"),
    "not subtracted": (("scores - new_highest[..., None]", "scores"), "exponentials = torch.exp(scores -"),
    "axis": (("mixed / total[..., None]", "mixed / total"), "adds an axis of 1"),
    "no maximum in lse": (("highest + torch.log(total)", "torch.log(total)"), "has to be added again"),
    "one result": (
        ("    return out, lse\n\n\ndef", "    return out\n\n\ndef"),
        "expected it to return out, lse",
    ),
    "logarithms added": ((LSE, "lse_a + lse_b"), "the logarithm of a product"),
    # `out` is wrong as well, since it is made of `lse`.
    "larger one": ((LSE, "torch.maximum(lse_a, lse_b)"), "`lse` is the larger of the two"),
    "overflow": ((LSE, "torch.log(torch.exp(lse_a) + torch.exp(lse_b))"), "overflows where lse"),
    "other function": ((LSE, "torch.logsumexp(lse_a, lse_b)"), "sums along an axis"),
}
WRITE, CORRECT = "state + torch.outer(k[t], v[t])  #", "beta[t] * torch.outer(k[t], v[t] - old)"
READ = "(q[t] @ state) / (q[t] @ total)"
LINEAR_ATTENTION = {
    "value first": ((WRITE, "state + torch.outer(v[t], k[t])  #"), "is (D, E)"),
    "inner product": ((WRITE, "state + k[t] @ v[t]  #"), "is (D, E)"),
    "by the sum": ((READ, "(q[t] @ state) / total"), "are one number"),
    "one total": (("total + k[t]", "total + 1"), "total = total + k[t]"),
    "a list": (("    return torch.stack(outputs)\n", "    return outputs\n"), "torch.stack(…)"),
    "no beta": ((CORRECT, CORRECT.removeprefix("beta[t] * ")), "beta is not used"),
    "beta on the new": ((CORRECT, "torch.outer(k[t], beta[t] * v[t] - old)"), "taken out whatever beta is"),
    "all betas": ((CORRECT, CORRECT.replace("beta[t]", "beta")), "are one number"),
    "added": ((CORRECT, CORRECT.replace("- old", "+ old")), "is added, not taken out"),
    "a gate": (
        (f"state + {CORRECT}", "(1 - beta[t]) * state + beta[t] * torch.outer(k[t], v[t])"),
        "the whole state fades",
    ),
    "no such place": (("old = k[t] @ state", "old = k[t + 1] @ state"), "q[t] @ state are (E,)"),
    "from the right": (("old = k[t] @ state", "old = state @ k[t]"), "is (D, E)"),
    "128": (("large = 64", "large = 128"), "does not hold keys alone"),
}
PRODUCTS = "torch.maximum(q * lowest, q * highest)"
FILLED, SHARE = "scores.masked_fill(~visible, -torch.inf)", "1 - torch.exp(lse_kept - lse)"
SELECTION = {
    "other axis": (("blocks.amin(dim=1)", "blocks.amin(dim=-1)"), "blocks.amin(dim=1) and"),
    "middle": ((PRODUCTS, "q * (lowest + highest) / 2"), "The middle of the two extremes"),
    "from below": ((PRODUCTS, "torch.minimum(q * lowest, q * highest)"), "a bound from below"),
    "Python's max": ((PRODUCTS, "max(q * lowest, q * highest)"), "Python's max cannot"),
    "waiting": ((PRODUCTS, "q * highest"), "it waits for `block_bounds`"),
    "smallest": (("bounds.topk(count", "(-bounds).topk(count"), "smallest bounds"),
    "values too": ((").indices", ")"), "topk gives values and indices"),
    "values": ((").indices", ").values"), "topk gives values and indices"),
    "tiled": (("repeat_interleave(block_size, dim=-1)", "repeat(1, block_size)"), "0 0 0 1 1 1"),
    "blocks": (("kept.repeat_interleave(block_size, dim=-1)", "kept"), "one value for each key"),
    "all": ((FILLED, "scores"), "the selection is computed and not used"),
    "fewer columns": ((FILLED, "scores[visible]"), "keep the shape (T, S)"),
    "kept": ((SHARE, "torch.exp(lse_kept - lse)"), "the share that was kept"),
    "overflow": ((SHARE, "1 - torch.exp(lse_kept) / torch.exp(lse)"), "overflows where lse"),
    "three quarters": (("lost = 0.073", "lost = 0.75"), "they are the weak ones"),
}
CASES = [
    (number, case, swap, said)
    for number, cases in zip(
        range(13, 18), (GROUPED_HEADS, WINDOW, ONLINE_SOFTMAX, LINEAR_ATTENTION, SELECTION), strict=True
    )
    for case, (swap, said) in cases.items()
]


@pytest.mark.parametrize(
    ("number", "swap", "said"),
    [(number, swap, said) for number, _, swap, said in share(CASES, 3)],
    ids=[f"{number} {case}" for number, case, _, _ in share(CASES, 3)],
)
def test_a_mistake_is_answered_with_what_it_is_and_what_to_do(
    number: int, swap: tuple[str, str], said: str, tmp_path: Path
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution)
    assert swap[0] in program
    outcomes = judged(lesson, program.replace(*swap), tmp_path)
    assert said in " ".join(map(_text, outcomes)), outcomes
    wrong = [outcome for outcome in outcomes if outcome.status == "wrong"]
    assert wrong
    assert all(outcome.hint for outcome in wrong)


@pytest.mark.parametrize(
    ("number", "right", "other"),
    [
        (13, KEYS, "k = k[:, :, None].expand(-1, -1, H // G, -1, -1).flatten(1, 2)"),
        (14, NEAR, "query - key < window"),
        (14, VISIBLE, "causal * (near + first)"),
        (15, HIGHEST, "torch.max(highest, scores.max(dim=-1).values)"),
        (16, WRITE, "state + k[t][:, None] * v[t]  #"),
        (17, PRODUCTS, "torch.where(q > 0, q * highest, q * lowest)"),
        (17, "bounds.topk(count, dim=-1).indices", "bounds.argsort(dim=-1, descending=True)[:, :count]"),
    ],
)
def test_another_right_way_is_right(number: int, right: str, other: str, tmp_path: Path) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution)
    assert right in program
    outcomes = judged(lesson, program.replace(right, other), tmp_path)
    assert {outcome.status for outcome in outcomes} == {"done"}, outcomes


def _body(number: int, start: str, end: str) -> str:
    """The lines of a solution from the one that begins with `start` to the one before `end`."""
    program = plain_solution(get_lesson(number).solution)
    return program[program.index(start) : program.index(end)]


@pytest.mark.parametrize(
    ("number", "body", "instead", "said"),
    [
        (
            15,
            ("    highest = q", "def merge"),
            "    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
            "    return torch.softmax(s, dim=-1) @ v, torch.logsumexp(s, dim=-1)\n\n\n",
            "a tensor (5, 16)",
        ),
        (
            15,
            ("    highest = q", "def merge"),
            "    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
            "    scores = [q @ block.mT / math.sqrt(q.shape[-1]) for block in k.split(block_size, dim=-2)]\n"
            "    return out, torch.stack([s.logsumexp(-1) for s in scores]).logsumexp(0)\n\n\n",
            "from all scores at once",
        ),
        (
            16,
            ("    state = torch.zeros", "def delta_rule"),
            "    w = (q @ k.mT).tril()\n    return w @ v / w.sum(-1, keepdim=True)\n\n\n",
            "a tensor (13, 13)",
        ),
        (
            16,
            ("    state = torch.zeros", "def delta_rule"),
            "    rows = [q[t] @ k[: t + 1].mT for t in range(len(q))]\n"
            "    return torch.stack([row @ v[: len(row)] / row.sum() for row in rows])\n\n\n",
            "for 13 tokens",
        ),
    ],
)
def test_right_numbers_by_the_way_that_the_lesson_replaces_are_noticed(
    number: int, body: tuple[str, str], instead: str, said: str, tmp_path: Path
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution).replace(_body(number, *body), instead)
    outcome = judged(lesson, program, tmp_path)[0]
    assert outcome.status == "unfinished"
    assert outcome.message.startswith("the numbers are right")
    assert said in outcome.message
    assert outcome.hint


def test_the_hint_for_a_function_written_otherwise_has_all_its_lines(tmp_path: Path) -> None:
    lesson = get_lesson(15)
    program = plain_solution(lesson.solution)
    body = _body(15, "    highest = q", "def merge")
    outcome = judged(lesson, program.replace(body, "    return q @ k.mT @ v, q.sum(-1)\n\n\n"), tmp_path)[0]
    marked = [line.split("  #:")[0].strip() for line in lesson.solution.splitlines() if "  #:" in line]
    for line in marked[:7]:
        assert line in outcome.hint


def test_a_second_mistake_does_not_hide_the_name_of_the_first(tmp_path: Path) -> None:
    lesson = get_lesson(15)
    program = plain_solution(lesson.solution)
    program = program.replace("total * shrink +", "total +").replace("mixed / total[..., None]", "mixed / 2")
    outcome = judged(lesson, program, tmp_path)[0]
    assert outcome.mistake == "block-not-rescaled"
    assert "After that: " in outcome.message
    assert outcome.hint.endswith("total = total * shrink + exponentials.sum(dim=-1)")


def test_a_wrong_order_of_the_cache_is_explained_as_that(tmp_path: Path) -> None:
    lesson = get_lesson(14)
    program = plain_solution(lesson.solution)
    for x in "kv":
        first, latest = f"{x}[..., :sinks, :]", f"{x}[..., -window:, :]"
        program = program.replace(f"[{first}, {latest}]", f"[{latest}, {first}]")
    outcome = judged(lesson, program, tmp_path)[1]
    assert outcome.mistake == "cache-in-wrong-order"
    assert "mask" not in outcome.message


@pytest.mark.parametrize(
    ("number", "right", "guess"),
    [
        (13, "groups = 21.5", "groups = 10.7"),
        (13, "groups = 21.5", "groups = 5"),
        (14, "layers = 9", "layers = 12"),
        (15, "scores = 268", "scores = 67.1"),
        (16, "large = 64", "large = 128"),
        (16, "large = 64", "large = 65"),
        (17, "lost = 0.073", "lost = 0.75"),
        (17, "lost = 0.073", "lost = 0.5"),
    ],
)
def test_a_wrong_guess_does_not_give_the_answer_away(
    number: int, right: str, guess: str, tmp_path: Path
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution)
    assert right in program
    outcome = judged(lesson, program.replace(right, guess), tmp_path)[-1]
    assert outcome.status == "wrong"
    number_itself = right.split("= ")[1]
    for text in (outcome.message, outcome.hint, outcome.more):
        assert number_itself not in text
    assert outcome.hint


@pytest.mark.parametrize("function", share(FUNCTIONS, 2), ids=lambda function: function.name)
def test_every_wrong_way_is_wrong_and_gives_numbers_of_its_own(function: FunctionTask) -> None:
    every = replace(function, wrong_ways=(WrongWay("", ""), *function.wrong_ways))
    answers = [variant.answer for variant in every.variants(function.cases())]
    for a, b in combinations(answers, 2):
        assert a.shape != b.shape or largest_difference(a, b) > 10 * TOLERANCE
    module = ModuleType("lesson")
    if function.after:
        setattr(module, function.after.name, function.after.right)
    for way in function.wrong_ways:
        outcome = function.judge(define(function.lesson, function.name, way.right, way.wrong), module)
        assert (outcome.mistake, outcome.hint) == (way.mistake, function.hint_for(way)), outcome
        assert outcome.hint
        assert outcome.message.startswith(way.said)


HEADS = (
    "    H, T, D = q.shape[1:]\n"
    "    G, S = k.shape[1:3]\n"
    "    visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)\n"
    "    out = []\n"
    "    for h in range(H):\n"
    "        s = (q[:, h] @ k[:, h % G].mT / math.sqrt(D)).masked_fill(~visible, -torch.inf)\n"
    "        out.append(torch.softmax(s, dim=-1) @ v[:, h % G])\n"
    "    return torch.stack(out, dim=1)\n\n\n"
)
BLOCKS = (
    "    out = []\n"
    "    for block in k.split(block_size):\n"
    "        out.append((q * block.amax(dim=0)).sum(dim=-1) / math.sqrt(q.shape[-1]))\n"
    "    return torch.stack(out, dim=-1)\n\n\n"
)


@pytest.mark.parametrize(
    ("number", "body", "instead"),
    [
        (13, ("    H, T, D", "def pool_heads"), HEADS),
        (
            13,
            ("    H, T, D", "def pool_heads"),
            HEADS.replace("s = (", "scores = (").replace("(s,", "(scores,"),
        ),
        (
            13,
            ("    H, T, D", "def pool_heads"),
            HEADS.replace("h % G", "h // (H // G)").replace("dim=1)", "dim=0)"),
        ),
        (17, ("    D = q.shape", "def selected_attention"), BLOCKS),
    ],
)
def test_no_line_of_a_loop_is_replaced_by_one_of_a_solution_without(
    number: int, body: tuple[str, str], instead: str, tmp_path: Path
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution).replace(_body(number, *body), instead)
    outcome = next(outcome for outcome in judged(lesson, program, tmp_path) if outcome.status == "wrong")
    assert "NameError" not in outcome.message
    assert outcome.hint
    assert "line " not in outcome.hint


def test_an_error_is_told_once_and_with_its_line(tmp_path: Path) -> None:
    lesson = get_lesson(13)
    program = plain_solution(lesson.solution).replace(KEYS, "k = k.repeat_interleave(H, dim=1)")
    outcome = judged(lesson, program, tmp_path)[1]
    assert outcome.message.startswith("line 36, scores = ")
    assert outcome.message.count("RuntimeError") == 1


def _text(outcome: Outcome) -> str:
    return f"{outcome.task} {outcome.mistake} {outcome.message} {outcome.hint}"
