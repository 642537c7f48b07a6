"""What learners do beside the usual mistakes: other ways that are right, or are not the lesson's."""

import re
from itertools import combinations
from types import ModuleType

import pytest
import torch

from regard.learn.course import get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.judges import (
    block,
    grouped_heads,
    linear_attention,
    online_softmax,
    positions,
    selection,
    similarity,
    trained_heads,
    window,
)
from regard.learn.judges.common.functions import FunctionTask
from regard.learn.judges.common.relations import TOLERANCE, largest_difference
from regard.learn.wrong_ways import define, hint_for
from tests.learn.in_process import judge_one, judged, outcomes_of_solution, program_with, task_with
from tests.sampling import share

JUDGES = (similarity, positions, block, grouped_heads, window, online_softmax, linear_attention, selection)
FUNCTIONS = [
    *trained_heads.SCORES.values(),
    *(thing for judge in JUDGES for thing in vars(judge).values() if isinstance(thing, FunctionTask)),
]

FILLED = "scores.masked_fill(~visible, -torch.inf)"
OTHER = "changed[:, t] = torch.randn_like(x[:, t])"
MOVED = "not torch.allclose(out[:, :t], out_changed[:, :t])"
KEYS = "k = k.repeat_interleave(H // G, dim=1)"
NEAR, VISIBLE = "key > query - window", "causal & (near | first)"
HIGHEST = "torch.maximum(highest, scores.amax(dim=-1))"
WRITE = "state + torch.outer(k[t], v[t])  #"
PRODUCTS = "torch.maximum(q * lowest, q * highest)"
# A lesson, what is replaced in its solution, by what, and what is said to it beside that it is right.
OTHER_WAYS = [
    (2, ", bias=False", "", "Your W_k has a bias"),
    (2, "q @ k.mT", "q @ k.mT / k.shape[-1] ** 0.5", "which is lesson 3"),
    (4, FILLED, "scores.masked_fill(~visible, -1e9)", "One warning, finite-mask-value"),
    (4, FILLED, "torch.where(visible, scores, -torch.inf)", ""),
    (5, ", persistent=False", "", "One warning, persistent-mask"),
    (4, OTHER, "changed[:, t] = 0", ""),
    (4, OTHER, "changed[:, t] += 1", ""),
    (4, MOVED, "not torch.equal(out[:, :t], out_changed[:, :t])", "compares bit for bit"),
    (4, MOVED, "(out[:, :t] != out_changed[:, :t]).any()", "compares bit for bit"),
    (13, KEYS, "k = k[:, :, None].expand(-1, -1, H // G, -1, -1).flatten(1, 2)", ""),
    (14, NEAR, "query - key < window", ""),
    (14, VISIBLE, "causal * (near + first)", ""),
    (15, HIGHEST, "torch.max(highest, scores.max(dim=-1).values)", ""),
    (16, WRITE, "state + k[t][:, None] * v[t]  #", ""),
    (17, PRODUCTS, "torch.where(q > 0, q * highest, q * lowest)", ""),
    (17, "bounds.topk(count, dim=-1).indices", "bounds.argsort(dim=-1, descending=True)[:, :count]", ""),
]


@pytest.mark.parametrize(("number", "right", "other", "said"), OTHER_WAYS)
def test_another_right_way_is_right(number, right, other, said):
    lesson = get_lesson(number)
    outcome = judge_one(lesson, task_with(lesson, right), program_with(number, (right, other)))
    assert outcome.status == "done", outcome
    assert said in outcome.message
    assert said or not re.search("warning|bit for bit", outcome.message)


def _body(number, start, end):
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
def test_right_numbers_by_the_way_that_the_lesson_replaces_are_noticed(number, body, instead, said, tmp_path):
    program = program_with(number, (_body(number, *body), instead))
    outcome = judged(get_lesson(number), program, tmp_path)[0]
    assert outcome.status == "unfinished"
    assert outcome.message.startswith("the numbers are right")
    assert said in outcome.message
    assert outcome.hint


def test_the_hint_for_a_function_written_otherwise_has_all_its_lines(tmp_path):
    lesson = get_lesson(15)
    program = plain_solution(lesson.solution)
    body = _body(15, "    highest = q", "def merge")
    outcome = judged(lesson, program.replace(body, "    return q @ k.mT @ v, q.sum(-1)\n\n\n"), tmp_path)[0]
    marked = [line.split("  #:")[0].strip() for line in lesson.solution.splitlines() if "  #:" in line]
    for line in marked[:7]:
        assert line in outcome.hint


def test_a_second_mistake_does_not_hide_the_name_of_the_first(tmp_path):
    swaps = ("total * shrink +", "total +"), ("mixed / total[..., None]", "mixed / 2")
    outcome = judged(get_lesson(15), program_with(15, *swaps), tmp_path)[0]
    assert outcome.mistake == "block-not-rescaled"
    assert "After that: " in outcome.message
    assert outcome.hint.endswith("total = total * shrink + exponentials.sum(dim=-1)")


@pytest.mark.parametrize("function", share(FUNCTIONS, 4), ids=lambda function: function.name)
def test_every_wrong_way_is_wrong_and_gives_numbers_of_its_own(function):
    every = range(len(function.results))
    edits = (("", ""), *(way[:2] for way in function.wrong_ways))
    answers = [function.numbers(function.cases(), *edit, every) for edit in edits]
    for a, b in combinations(answers, 2):
        assert a.shape != b.shape or largest_difference(a, b) > 10 * TOLERANCE
    module = ModuleType("lesson")
    if function.after:
        setattr(module, function.after.name, function.after.right)
    for way in function.wrong_ways:
        outcome = function.judge(define(function.lesson, function.name, way.right, way.wrong), module)
        assert (outcome.mistake, outcome.hint) == (
            way.mistake,
            hint_for(function.lesson, function.name, way),
        ), outcome
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
        (17, ("    D = q.shape", "def selected_attention"), BLOCKS),
    ],
)
def test_no_line_of_a_loop_is_replaced_by_one_of_a_solution_without(number, body, instead, tmp_path):
    program = program_with(number, (_body(number, *body), instead))
    outcomes = judged(get_lesson(number), program, tmp_path)
    outcome = next(outcome for outcome in outcomes if outcome.status == "wrong")
    assert "NameError" not in outcome.message
    assert outcome.hint
    assert "line " not in outcome.hint


def test_an_error_is_told_once_and_with_its_line(tmp_path):
    program = program_with(13, (KEYS, "k = k.repeat_interleave(H, dim=1)"))
    outcome = judged(get_lesson(13), program, tmp_path)[1]
    assert outcome.message.startswith("line 36, scores = ")
    assert outcome.message.count("RuntimeError") == 1


GOLDEN = {  # the weights of "model" on the running example
    2: [0.1796, 0.1950, 0.1957, 0.1390, 0.1260, 0.1645],
    3: [0.1762, 0.1868, 0.1872, 0.1470, 0.1372, 0.1656],
    4: [0.4855, 0.5145, 0.0, 0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_picture_holds_the_weights_of_the_running_example(number):
    found = [outcome.picture for outcome in outcomes_of_solution(number) if outcome.picture]
    assert len(found) == 1
    assert torch.tensor(found[0].weights[0][1]).numpy() == pytest.approx(GOLDEN[number], abs=6e-5)


def test_a_hint_has_no_names_that_the_code_has_not(tmp_path):
    also = ("torch.softmax(scores, dim=-1)", "torch.softmax(rows, dim=-1).transpose(0, 1)")
    program = program_with(2, ("scores = q @ k.mT", "rows = q @ k.mT"), also)
    (outcome,) = (o for o in judged(get_lesson(2), program, tmp_path) if o.status == "wrong")
    assert outcome.hint.endswith("and should be (2, 5, 5); line 39: weights = torch.softmax(rows, dim=-1)")
