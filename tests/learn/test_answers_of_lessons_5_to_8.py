"""What learners do beside the usual mistakes of lessons 5 to 8, and the answer that they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.learn.course import get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.lesson import Outcome
from tests.learn.in_process import judged
from tests.sampling import share

SUPER = ("        super().__init__()\n", "")
BUFFER = 'self.register_buffer("causal_mask", visible, persistent=False)'
HEAD = {
    "no super": (SUPER, "super().__init__()"),
    "one tensor": (("return weights @ v, weights", "return weights @ v"), "expected two tensors"),
    "weights first": (("return weights @ v, weights", "return weights, weights @ v"), "return out, weights"),
    "k.T": (("k.mT", "k.T"), "dot-t-on-a-batch"),
    "no slice": (("self.causal_mask[:T, :T]", "self.causal_mask"), "causal_mask[:T, :T]"),
    "other names": (("W_q", "query"), "expected `self.W_q`"),
    "no module": (("Head(nn.Module)", "Head"), "class Head(nn.Module)"),
    "saved mask": ((", persistent=False", ""), "persistent-mask"),
    "buffer without a name": (
        (BUFFER, "self.register_buffer(visible, persistent=False)"),
        "a name and a tensor",
    ),
    "mask as parameter": (
        (
            BUFFER,
            "self.causal_mask = nn.Parameter(visible.float(), requires_grad=False)",
        ),
        "is a parameter",
    ),
}
COMPARE = "return torch.allclose(out, expected, atol=1e-6)"
CHECKS = {
    "dropout on": (("    head.eval()", "    pass"), "training mode"),
    "not causal": ((", is_causal=True", ""), "no-mask"),
    "bit for bit": ((COMPARE, "return torch.equal(out, expected)"), "last digits"),
    "too tolerant": (("atol=1e-6", "atol=0.1"), "the scale from the model's width"),
    "no return": ((COMPARE, "torch.equal(out, expected)"), "returns None"),
    "always true": ((COMPARE, "return True"), "accepts every head"),
    "a tensor": ((COMPARE, "return out - expected"), "expected True or False"),
    "keys and values": (("head.W_k(x), head.W_v(x)", "head.W_v(x), head.W_k(x)"), "key-value-swapped"),
    "other names": (("head.W_k(x)", "head.key(x)"), "every head has W_q, W_k and W_v"),
}
HEADS = {
    "no super": (SUPER, "super().__init__()"),
    "view": (("tokens.flatten(-2)", "tokens.view(*x.shape[:-3], -1, 20)"), "write .reshape"),
    "no transpose": (("return x.transpose(-3, -2)", "return x"), "`split` gives (2, 6, 4, 5)"),
    "other axes": (("tokens = x.transpose(-3, -2)", "tokens = x.transpose(-2, -1)"), "`merge` gives"),
    "width of the model": (
        ("d_out // num_heads", "d_model // num_heads"),
        "head_dim = d_out // num_heads",
    ),
    "a fraction": (("d_out // num_heads", "d_out / num_heads"), "is 5.0 and should be 5"),
    "not merged": (("self.merge(weights @ v)", "weights @ v"), "expected the output (2, 6, 20)"),
    "no self": (("= self.merge(", "= merge("), "self.merge("),
    "interleaved": (("tokens = x.transpose(-3, -2)", "tokens = x.permute(0, 2, 3, 1)"), "heads-interleaved"),
}
OUTPUT = {
    "residual": (("out = self.W_o(heads)", "out = x + self.W_o(heads)"), "belongs to the block"),
    "before the merge": (("self.W_o(heads)", "self.W_o(weights @ v)"), "cannot be multiplied"),
    "queries of the context": (("q = self.W_q(x)  #", "q = self.W_q(context)  #"), "The queries come from"),
    "values of x": (("self.W_v(context)", "self.W_v(x)"), "Your values come from x"),
    "widths": (("nn.Linear(d_context, ", "nn.Linear(d_model, "), "= nn.Linear(d_context, d_model"),
    "causal": (
        ("softmax(scores, dim=-1)  #", "softmax(scores.tril() - 1e9 * (scores.tril() == 0), -1)  #"),
        "no mask",
    ),
}
POSITIONS = {
    "nothing turned": (("q, k = rotate(q), rotate(k)", "q, k = q, k"), "positions-cancel"),
    "the other way": (("angles.sin()", "-angles.sin()"), "the other way round"),
    "neighbours": (
        ("torch.cat([turned_a, turned_b], dim=-1)", "torch.stack([turned_a, turned_b], -1).flatten(-2)"),
        "",
    ),
    "from 0 always": (("torch.arange(start, start + T", "torch.arange(T"), "with start=5"),
    "slopes from 0": (("torch.arange(1, num_heads + 1)", "torch.arange(num_heads)"), "alibi-slopes"),
    "slopes without axes": (("-slopes[:, None, None]", "-slopes[:, None]"), "alibi_bias"),
    "waiting": (("a * cos - b * sin", "a * cos"), "waits for `rotate`"),
}
CASES = [
    (number, case, swap, said)
    for number, cases in ((5, HEAD), (5, CHECKS), (6, HEADS), (7, OUTPUT), (8, POSITIONS))
    for case, (swap, said) in cases.items()
]


@pytest.mark.parametrize(
    ("number", "swap", "said"),
    [(number, swap, said) for number, _, swap, said in share(CASES, 2)],
    ids=[f"{number} {case}" for number, case, _, _ in share(CASES, 2)],
)
def test_an_error_is_answered_with_what_to_do(
    number: int, swap: tuple[str, str], said: str, tmp_path: Path
) -> None:
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution)
    assert swap[0] in program
    outcomes = judged(lesson, program.replace(*swap), tmp_path)
    assert said in " ".join(map(_text, outcomes)), outcomes
    warned = said == "persistent-mask"  # right, with a warning
    assert warned == all(outcome.status == "done" for outcome in outcomes), outcomes


def _text(outcome: Outcome) -> str:
    return f"{outcome.task} {outcome.mistake} {outcome.message} {outcome.hint}"
