"""Lessons 1 to 4: errors of learners that are in no catalogue, and answers that are right in another way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.learn.course import get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.lesson import Outcome
from tests.learn.in_process import judged, outcomes_of_solution
from tests.sampling import share

GOLDEN = {  # the weights of "model" on the running example
    2: [0.1796, 0.1950, 0.1957, 0.1390, 0.1260, 0.1645],
    3: [0.1762, 0.1868, 0.1872, 0.1470, 0.1372, 0.1656],
    4: [0.4855, 0.5145, 0.0, 0.0, 0.0, 0.0],
}
SCALED, FILLED = "q @ k.mT / math.sqrt(k.shape[-1])", "scores.masked_fill(~visible, -torch.inf)"
OTHER, MOVED = (
    "changed[:, t] = torch.randn_like(x[:, t])",
    "not torch.allclose(out[:, :t], out_changed[:, :t])",
)


def outcomes(number: int, right: str, wrong: str, folder: Path) -> dict[str, Outcome]:
    """Judge the solution of a lesson in which `right` is replaced; the outcomes by the names of the tasks."""
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution)
    assert right in program
    return {outcome.task: outcome for outcome in judged(lesson, program.replace(right, wrong), folder)}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_picture_holds_the_weights_of_the_running_example(number: int) -> None:
    found = [outcome.picture for outcome in outcomes_of_solution(number) if outcome.picture]
    assert len(found) == 1
    assert torch.tensor(found[0].weights[0][1]).numpy() == pytest.approx(GOLDEN[number], abs=6e-5)


@pytest.mark.parametrize(
    ("right", "wrong", "message", "hint"),
    [
        ("        super().__init__()\n", "", "does not call that of nn.Module", "super().__init__()"),
        ("return out, weights", "return out", "returns one tensor (2, 5, 6)", "return out, weights"),
        ("return out, weights", "return weights, out", "returns the weights first", "return out, weights"),
        ("        return out, weights\n", "", "returns nothing", "return out, weights"),
        ("q @ k.mT", "q @ k", ", scores = q @ k: RuntimeError", "scores = q @ k.mT"),
        ("q @ k.mT", "q @ K.mT", "name 'K' is not defined", ""),
        ("weights @ v", "weights @ x", "expected the output (2, 5, 6)", "weights @ v"),
        ("weights @ v", "weights @ k", "it is the mean of the keys", "out = weights @ v"),
        ("weights @ v", "weights.mT @ v", "the weights are transposed there", "out = weights @ v"),
        (
            "UnscaledSelfAttention(nn.Module)",
            "UnscaledSelfAttention",
            "a class that derives from nn.Module",
            "nn.Module",
        ),
        ("self.W_v = ", "self.W_value = ", "expected `self.W_v`, an nn.Linear", "self.W_v = nn.Linear"),
        ("q @ k.mT", "q @ k.mT / k.shape[-1]", "divided by D instead of √D", "lesson 3"),
    ],
)
def test_an_error_is_answered_in_a_sentence(
    right: str, wrong: str, message: str, hint: str, tmp_path: Path
) -> None:
    outcome = outcomes(2, right, wrong, tmp_path)["UnscaledSelfAttention"]
    assert outcome.status == "wrong"
    assert message in outcome.message
    assert hint in outcome.hint


@pytest.mark.filterwarnings("ignore:The use of `x.T`:UserWarning")
@pytest.mark.parametrize(
    ("right", "wrong", "mistake"),
    [
        ("q @ k.mT", "q @ k.T", "dot-t-on-a-batch"),
        ("nn.Linear(d_model, head_dim, bias=False)  # makes the keys", "self.W_q  # ", "one-projection"),
    ],
)
def test_an_error_that_the_checker_cannot_run_is_named(
    right: str, wrong: str, mistake: str, tmp_path: Path
) -> None:
    assert outcomes(2, right, wrong, tmp_path)["UnscaledSelfAttention"].mistake == mistake


def test_a_bias_in_lesson_2_counts_as_right(tmp_path: Path) -> None:
    outcome = outcomes(2, ", bias=False", "", tmp_path)["UnscaledSelfAttention"]
    assert outcome.status == "done"
    assert "Your W_k has a bias" in outcome.message


def test_a_scale_in_lesson_2_counts_as_right(tmp_path: Path) -> None:
    outcome = outcomes(2, "q @ k.mT", "q @ k.mT / k.shape[-1] ** 0.5", tmp_path)["UnscaledSelfAttention"]
    assert outcome.status == "done"
    assert "which is lesson 3" in outcome.message


@pytest.mark.parametrize(
    ("guess", "status", "message"),
    [
        ("7.5", "done", "is 8"),
        ("7", "wrong", "10% off"),
        ("64", "wrong", "64 is the variance"),
        ("1", "wrong", "of one product"),
        ("1 / 8", "wrong", "what to multiply"),
        ("'8'", "unfinished", "expected a number"),
    ],
)
def test_a_prediction_is_answered(guess: str, status: str, message: str, tmp_path: Path) -> None:
    outcome = outcomes(3, "std_of_scores = math.sqrt(64)", f"std_of_scores = {guess}", tmp_path)
    assert outcome["std_of_scores"].status == status
    assert message in outcome["std_of_scores"].message


def test_a_constant_for_one_width_is_named(tmp_path: Path) -> None:
    assert outcomes(3, SCALED, "q @ k.mT / 8", tmp_path)["SelfAttention"].mistake == "constant-scale"


@pytest.mark.parametrize(
    ("wrong", "warning"),
    [
        ("scores.masked_fill(~visible, -1e9)", "finite-mask-value"),
        ("torch.where(visible, scores, -torch.inf)", ""),
    ],
)
def test_what_is_right_with_a_warning_is_done_and_warned_of(wrong: str, warning: str, tmp_path: Path) -> None:
    outcome = outcomes(4, FILLED, wrong, tmp_path)["CausalSelfAttention"]
    assert outcome.status == "done"
    assert ("One warning" in outcome.message) == bool(warning)
    assert warning in outcome.message


def test_a_mask_of_floats_is_answered_with_its_dtype(tmp_path: Path) -> None:
    outcome = outcomes(4, "dtype=torch.bool", "dtype=torch.float32", tmp_path)["CausalSelfAttention"]
    assert "torch.bool" in outcome.hint


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    share(
        [
            (
                OTHER,
                OTHER.replace("changed[:, t]", "changed[:, -1]"),
                "tokens 1, 2, 3, 4 of 0 to 5 are never",
            ),
            ("    return False", "        return False", "tokens 2, 3, 4, 5 of 0 to 5 are never changed"),
            (MOVED, MOVED.replace(":t]", "t - 1]"), "the first token sees the last one"),
            (MOVED, "bool((out - out_changed)[:, :t].max() > 1e-6)", "one number rises"),
            (MOVED, "bool(attention(x)[1].triu(1).any())", "set to 0 after softmax"),
            (MOVED, "True", "accuses an attention that does not leak"),
            (MOVED, "False", "misses a leak: every token sees every token"),
            (MOVED, MOVED.removeprefix("not "), "accuses an attention"),
            (MOVED, MOVED.replace(":t]", ": t + 1]"), "accuses an attention"),
            ("    return False", "    return None", "expected True or False"),
            ("changed = x.clone()", "changed = x", "it changes x itself"),
        ],
        3,
    ),
)
def test_a_poor_test_for_leaks_is_told_what_it_misses(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    outcome = outcomes(4, right, wrong, tmp_path)["finds_leak"]
    assert outcome.status == "wrong"
    assert message in outcome.message
    assert outcome.hint


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (MOVED.replace("[:, :t]", "[:t]"), "out[:, :t] takes tokens"),
        (MOVED.replace(":t]", ": t + 1]"), "only if one of an earlier token has moved"),
    ],
)
def test_texts_taken_for_tokens_get_a_hint_of_their_own(wrong: str, hint: str, tmp_path: Path) -> None:
    assert hint in outcomes(4, MOVED, wrong, tmp_path)["finds_leak"].hint


@pytest.mark.parametrize(
    ("right", "wrong", "message", "hint"),
    [
        ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=0)", "Your columns sum to 1", "dim=-1"),
        ("torch.softmax(scores, dim=-1)", "scores / scores.sum(-1, keepdim=True)", "no softmax", "softmax"),
        ("return out, weights", "return weights, out", "are out and weights exchanged?", "in this order"),
        ("return out, weights", "pass", "got None: is `return` missing?", "return out, weights"),
        ("x.mT", "x.T", "fails on a batch", "x @ x.mT"),
        ("    scores =", "    x -= x.mean()\n    scores =", "One of its arguments has changed", "="),
        ("torch.softmax(", "F.softmax(", "name 'F' is not defined", "import torch.nn.functional as F"),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`:UserWarning")
def test_lesson_1_answers_in_its_own_words(
    right: str, wrong: str, message: str, hint: str, tmp_path: Path
) -> None:
    outcome = outcomes(1, right, wrong, tmp_path)["simplified_self_attention"]
    assert outcome.status == "wrong"
    assert message in outcome.message
    assert hint in outcome.hint


SCALE = "math.sqrt(k.shape[-1])"


@pytest.mark.parametrize(
    ("number", "right", "wrong", "message"),
    [
        (3, SCALE, "k.shape[-1] ** 1 / 2", "** 1 / 2` is (width ** 1) / 2"),
        (3, "/ math.sqrt", "// math.sqrt", "`//` drops the fraction"),
        (4, "torch.ones(size, dtype=torch.bool).tril()", "torch.eye(*size).bool()", "sees itself alone"),
        (2, "torch.softmax(scores, dim=-1)", "torch.tanh(scores)", "rows of your weights do not sum to 1"),
    ],
)
def test_other_weights_are_told_apart(
    number: int, right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    assert any(message in o.message for o in outcomes(number, right, wrong, tmp_path).values())


def test_a_hint_has_no_names_that_the_code_has_not(tmp_path: Path) -> None:
    right, wrong = "scores = q @ k.mT", "rows = q @ k.mT"
    also = ("torch.softmax(scores, dim=-1)", "torch.softmax(rows, dim=-1).transpose(0, 1)")
    lesson = get_lesson(2)
    program = plain_solution(lesson.solution).replace(right, wrong).replace(*also)
    (outcome,) = (o for o in judged(lesson, program, tmp_path) if o.status == "wrong")
    assert outcome.hint.endswith("`weights` is (5, 2, 5) and should be (2, 5, 5)")


def test_a_comma_in_a_guess_is_told(tmp_path: Path) -> None:
    outcome = outcomes(1, "= 0.4298", "= 0,43", tmp_path)["weight_of_model_if_doubled"]
    assert (outcome.status, "with a point" in outcome.message) == ("unfinished", True)


def test_a_weight_above_1_is_no_guess(tmp_path: Path) -> None:
    outcome = outcomes(1, "= 0.4298", "= 3", tmp_path)["weight_of_model_if_doubled"]
    assert (outcome.status, "between 0 and 1" in outcome.message) == ("wrong", True)


@pytest.mark.parametrize(
    ("number", "right", "wrong", "message", "hint"),
    [
        (2, "softmax(scores, dim=-1)", "softmax(scores, dim=1)", "Your columns sum to 1", "dim=-1"),
        (3, "k.shape[-1]", "x.shape[-1]", "You divide by √d_model", "k.shape[-1]"),
        (4, "~visible", "visible", "must not see", "masked_fill(~visible"),
    ],
)
def test_a_mistake_is_told_in_the_names_of_the_lesson(
    number: int, right: str, wrong: str, message: str, hint: str, tmp_path: Path
) -> None:
    outcome = next(o for o in outcomes(number, right, wrong, tmp_path).values() if o.mistake)
    assert message in outcome.message
    assert hint in outcome.hint


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (OTHER, "changed[:, t] = 0"),
        (OTHER, "changed[:, t] += 1"),
        (MOVED, "not torch.equal(out[:, :t], out_changed[:, :t])"),
        (MOVED, "(out[:, :t] != out_changed[:, :t]).any()"),
    ],
)
def test_other_tests_for_leaks_are_right_too(right: str, wrong: str, tmp_path: Path) -> None:
    assert outcomes(4, right, wrong, tmp_path)["finds_leak"].status == "done"
