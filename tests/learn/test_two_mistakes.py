"""Two mistakes at once, and names of one's own: what is said, and which line the hints tell."""

import pytest

from regard.learn.course import get_lesson
from regard.learn.hints.errors import GENERAL_DIFFERENCE
from regard.learn.judgement import tasks_of
from tests.learn.in_process import judge_one, judged, program_with
from tests.sampling import share

SCORES, WEIGHTS, OUT = (
    "scores = x @ x.mT",
    "weights = torch.softmax(scores, dim=-1)",
    "out = weights @ x",
)
LOOP = (
    "scores = torch.zeros(*x.shape[:-1], x.shape[-2])\n    for i in range({}):\n        for j in range({}):\n"
    "            scores[..., i, j] = (x[..., i, :] * x[..., j, :]).sum(-1)"
)
TRANSPOSED = (
    "out = torch.zeros_like(v)\n        for i in range(x.shape[1]):\n"
    "            for j in range(x.shape[1]):\n                out[:, i] += weights[:, j, i, None] * v[:, j]"
)
CHANGED, MOVED = (
    "changed[:, t] = torch.randn_like(x[:, t])",
    "not torch.allclose(out[:, :t], out_changed[:, :t])",
)
# A lesson, a task, what is replaced by what, a part of the message, and the code that the last hint tells; ""
# if no line is to be told.
CASES = (
    (
        1,
        0,
        {SCORES: "s = x @ x.mT", WEIGHTS: "weights = torch.softmax(s, dim=-2)"},
        "",
        "torch.softmax(s, dim=-1)",
    ),
    (1, 0, {SCORES: LOOP.format("x.shape[-2]", "x.shape[-2] - 1")}, "the last column of your scores", SCORES),
    (
        1,
        0,
        {
            SCORES: "s = x @ x.mT",
            WEIGHTS: "w = torch.softmax(s, dim=-1)",
            OUT: "out = w.mT @ x\n    weights = w",
        },
        "`out`",
        "out = w @ x",
    ),
    (
        1,
        0,
        {SCORES: "n = x / x.norm(dim=-1, keepdim=True)\n    scores = n @ n.mT", "dim=-1)": "dim=-2)"},
        "columns that sum to 1",
        WEIGHTS,
    ),
    (
        2,
        0,
        {"self.W_k = nn.Linear(d_model, head_dim, bias=False)": "self.W_k = self.W_q", "dim=-1": "dim=1"},
        "one-projection",
        "",
    ),
    (4, 1, {CHANGED: "changed[:, t] = 0", MOVED: "(out_changed[:, t] != out[:, t]).any()"}, "accuses", MOVED),
    (
        5,
        1,
        {
            "head.eval()  #": "torch.no_grad()  #",
            "torch.allclose(out, expected, atol=1e-6)": "(out - expected).max() < 1e-6",
        },
        "all too small",
        "torch.allclose",
    ),
    (
        2,
        0,
        {"scores = q @ k.mT": "scores = k @ q.mT", "v = self.W_v(x)": "v = self.W_k(x)"},
        "one-projection",
        "v = self.W_v(x); and line 38: scores = q @ k.mT",
    ),
    (2, 0, {"out = weights @ v": TRANSPOSED}, "the weights are transposed there", "out = weights @ v"),
    (
        4,
        0,
        {"tril()": "triu(1)", "masked_fill(~visible, -torch.inf)": "masked_fill(visible, 0)"},
        "masked-with-zero",
        "",
    ),
    (
        5,
        0,
        {
            'self.register_buffer("causal_mask", visible, persistent=False)': "self.causal_mask = visible",
            "weights = self.dropout(weights)": "v = self.dropout(v)",
        },
        "plain-attribute",
        "after line 52: weights = self.dropout(weights); and leave out line 53",
    ),
    (2, 0, {"k.mT": "k.reshape(k.shape[0], k.shape[2], k.shape[1])"}, "reshaped, not transposed", "q @ k.mT"),
    (7, 1, {"math.sqrt(k.shape[-1])": "math.sqrt(context.shape[-1])"}, "by √d_context", "k.shape[-1]"),
    (7, 1, {"k, v = self.W_k(context), self.W_v(context)": "k, v = self.W_k(context)"}, "W_v", "k, v ="),
    (
        7,
        0,
        {
            "self.W_o = nn.Linear(d_model, d_model,": "self.W_o = nn.Linear(self.head_dim, self.head_dim,",
            "(weights @ v).transpose": "self.W_o(weights @ v).transpose",
            "out = self.W_o(heads)": "out = heads",
        },
        "W_o takes 6 numbers",
        "",
    ),
    (8, 0, {"places[:, None] * turns": "places[:, None] * turns * 180 / math.pi"}, "in degrees", "angles ="),
    (
        8,
        2,
        {
            "2.0 ** (-8.0 * heads / num_heads)": "1 / 2**heads",
            "(places[:, None] - places).abs()": "places[:, None] - places",
        },
        "right for 8 heads",
        "slopes =",
    ),
    (8, 2, {"(places[:, None] - places).abs()": "places.expand(T, T)"}, "on the key alone", "distance ="),
    (
        2,
        0,
        {"self.W_q(x)": "x @ self.W_q.weight"},
        "cannot be multiplied",
        "q = self.W_q(x)",
    ),
    (
        3,
        0,
        {"q @ k.mT / math.sqrt(k.shape[-1])": "q * k.shape[-1] ** -0.25 @ k.mT"},
        "where head_dim is 6, the scores are multiplied by 0.6389",
        "scores = q @ k.mT / math.sqrt(k.shape[-1])",
    ),
    (
        3,
        0,
        {"torch.softmax(scores, dim=-1)": "torch.softmax(scores / 8, dim=-1)"},
        "divided by 8",
        "torch.softmax(scores, dim=-1)",
    ),
    (
        5,
        0,
        {
            "        weights = self.dropout(weights)": "        if self.training:\n"
            "            keep = torch.rand_like(weights) > self.dropout.p\n"
            "            weights = weights * keep"
        },
        "dropout-not-rescaled",
        "",
    ),
    (
        5,
        0,
        {
            "weights = self.dropout(weights)": "weights = self.dropout(weights)\n"
            "        weights /= weights.sum(-1, True)"
        },
        "divided by their sum again",
        "leave out line 54",
    ),
    (
        8,
        1,
        {"q, k = rotate(q), rotate(k)": "q, k = rotate(q), rotate(k, start=1)"},
        "keys begin 1 later",
        "q, k =",
    ),
    (
        8,
        0,
        {"x[..., :half], x[..., half:]": "x[..., 0::2], x[..., 1::2]"},
        "pairs neighbours",
        "line 37: a, b =",
    ),
)


@pytest.mark.parametrize(
    ("number", "swaps"),
    share(
        [
            (4, {"tril()": "tril(1)", "q @ k.mT / math.sqrt(k.shape[-1])": "q @ k.mT"}),
            (6, {"/ math.sqrt(self.head_dim)": "", "scores, dim=-1": "scores, dim=-2"}),
        ],
        2,
    ),
)
def test_a_check_says_that_two_things_differ(number, swaps, tmp_path):
    lesson, program = get_lesson(number), program_with(number, *swaps.items(), times=1)
    (outcome,) = (outcome for outcome in judged(lesson, program, tmp_path) if outcome.status == "wrong")
    assert outcome.message.endswith(" At least two things differ."), outcome


@pytest.mark.parametrize(("number", "at", "swaps", "said", "code"), share(CASES, 4))
def test_the_hint_is_about_what_is_said(number, at, swaps, said, code):
    lesson, program = get_lesson(number), program_with(number, *swaps.items(), times=1)
    task = [task for task in tasks_of(lesson) if task.trials][at]
    outcome = judge_one(lesson, task, program)
    assert said in f"{outcome.mistake} {outcome.message}", outcome
    assert ("line " in outcome.hint) == bool(code), outcome
    assert code in outcome.hint, outcome
    # Nothing is asserted that is not so, and the place is told with what has been said of it.
    assert not outcome.hints[0].endswith("direction cannot be learned"), outcome
    assert all(not hint.endswith(GENERAL_DIFFERENCE) for hint in outcome.hints[1:2]) or outcome.mistake, (
        outcome
    )
    # The line is not in the hints before the last one.
    assert not code or all(code not in hint for hint in outcome.hints[:-1]), outcome
