"""Lessons 1 to 4: errors of learners that are in no catalogue, and answers that are right in another way."""

import pytest
import torch

from regard.learn.course import get_lesson
from regard.learn.judgement import tasks_of
from tests.learn.in_process import judge_one, judged, outcomes_of_solution, program_with

GOLDEN = {  # the weights of "model" on the running example
    2: [0.1796, 0.1950, 0.1957, 0.1390, 0.1260, 0.1645],
    3: [0.1762, 0.1868, 0.1872, 0.1470, 0.1372, 0.1656],
    4: [0.4855, 0.5145, 0.0, 0.0, 0.0, 0.0],
}
FILLED = "scores.masked_fill(~visible, -torch.inf)"
OTHER = "changed[:, t] = torch.randn_like(x[:, t])"
MOVED = "not torch.allclose(out[:, :t], out_changed[:, :t])"


def outcomes(number, right, wrong, folder):
    """Judge the solution of a lesson in which `right` is replaced; the outcomes by the names of the tasks."""
    program = program_with(number, (right, wrong))
    return {outcome.task: outcome for outcome in judged(get_lesson(number), program, folder)}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_picture_holds_the_weights_of_the_running_example(number):
    found = [outcome.picture for outcome in outcomes_of_solution(number) if outcome.picture]
    assert len(found) == 1
    assert torch.tensor(found[0].weights[0][1]).numpy() == pytest.approx(GOLDEN[number], abs=6e-5)


def test_a_bias_in_lesson_2_counts_as_right(tmp_path):
    outcome = outcomes(2, ", bias=False", "", tmp_path)["UnscaledSelfAttention"]
    assert outcome.status == "done"
    assert "Your W_k has a bias" in outcome.message


def test_a_scale_in_lesson_2_counts_as_right(tmp_path):
    outcome = outcomes(2, "q @ k.mT", "q @ k.mT / k.shape[-1] ** 0.5", tmp_path)["UnscaledSelfAttention"]
    assert outcome.status == "done"
    assert "which is lesson 3" in outcome.message


@pytest.mark.parametrize(
    ("number", "right", "wrong", "warning"),
    [
        (4, FILLED, "scores.masked_fill(~visible, -1e9)", "finite-mask-value"),
        (4, FILLED, "torch.where(visible, scores, -torch.inf)", ""),
        (5, ", persistent=False", "", "persistent-mask"),
    ],
)
def test_what_is_right_with_a_warning_is_done_and_warned_of(number, right, wrong, warning, tmp_path):
    name = {4: "CausalSelfAttention", 5: "Head"}[number]
    outcome = outcomes(number, right, wrong, tmp_path)[name]
    assert outcome.status == "done"
    assert ("One warning" in outcome.message) == bool(warning)
    assert warning in outcome.message


def test_a_hint_has_no_names_that_the_code_has_not(tmp_path):
    also = ("torch.softmax(scores, dim=-1)", "torch.softmax(rows, dim=-1).transpose(0, 1)")
    program = program_with(2, ("scores = q @ k.mT", "rows = q @ k.mT"), also)
    (outcome,) = (o for o in judged(get_lesson(2), program, tmp_path) if o.status == "wrong")
    assert outcome.hint.endswith("and should be (2, 5, 5); line 39: weights = torch.softmax(rows, dim=-1)")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (OTHER, "changed[:, t] = 0"),
        (OTHER, "changed[:, t] += 1"),
        (MOVED, "not torch.equal(out[:, :t], out_changed[:, :t])"),
        (MOVED, "(out[:, :t] != out_changed[:, :t]).any()"),
    ],
)
def test_other_tests_for_leaks_are_right_too(right, wrong, tmp_path):
    outcome = outcomes(4, right, wrong, tmp_path)["finds_leak"]
    assert outcome.status == "done"
    assert ("compares bit for bit" in outcome.message) == (right == MOVED)


@pytest.mark.parametrize(
    ("number", "task", "right", "wrong", "mistake"),
    [
        (5, "Head", "weights = self.dropout(weights)", "v = self.dropout(v)", "dropout-on-values"),
        (
            6,
            "MultiHeadAttention",
            "self.dropout(torch.softmax(scores, dim=-1))",
            "torch.softmax(scores, dim=-1); v = self.dropout(v)",
            "dropout-on-values",
        ),
        (10, "TransformerBlock", "nn.GELU()", "nn.Softmax(dim=-1)", "softmax-as-activation"),
        (10, "TransformerBlock", "nn.GELU()", "nn.Softmax(dim=1)", "softmax-as-activation"),
    ],
)
def test_what_runs_and_trains_in_another_place_is_named(number, task, right, wrong, mistake):
    lesson = get_lesson(number)
    (judged_task,) = (each for each in tasks_of(lesson) if each.name == task)
    outcome = judge_one(lesson, judged_task, program_with(number, (right, wrong)))
    assert (outcome.status, outcome.mistake) == ("wrong", mistake), outcome
    assert outcome.hint
    assert judge_one(lesson, judged_task, program_with(number)).status == "done"
