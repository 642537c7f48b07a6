"""The language of lesson 10, and its judge's promises: the text's numbers, and that attention is needed."""

import importlib.util

import pytest
import torch
from torch import nn

from regard.learn.course import get_lesson
from regard.learn.judgement import is_done, tasks_of
from regard.learn.judges import block
from regard.learn.sentences import (
    LENGTH,
    WORDS,
    entropy,
    loss_without_attention,
)
from tests.learn.in_process import judge_here, judged

LESSON = get_lesson(10)


@pytest.fixture
def solution():
    spec = importlib.util.spec_from_file_location("solution_of_lesson_10", LESSON.folder / "solution.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.at_length("test_the_judge_tells_how_far_training_is_and_heads_become_sharp")
def test_without_attention_the_bound_is_out_of_reach(solution):
    """The same model, trained as long as the judge trains, with attention that returns zeros."""

    class Blind(nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    torch.manual_seed(0)
    model = solution.SmallGPT(len(WORDS), LENGTH, block.D_MODEL, block.HEADS, block.LAYERS)
    for layer in model.blocks:
        layer.attention = Blind()
    loss = block.train(model, 300, block.BOUND, lambda doing: None)
    assert loss > 0.9
    assert loss_without_attention() - 0.02 < loss < loss_without_attention() + 0.1


@pytest.mark.at_length("test_the_judge_tells_how_far_training_is_and_heads_become_sharp")
def test_a_model_that_sees_its_answers_falls_below_what_is_possible(solution, tmp_path):
    leaking = LESSON.solution.replace("(q, k, v, is_causal=True)", "(q, k, v)")
    model = next(outcome for outcome in judged(LESSON, leaking, tmp_path) if outcome.task == "SmallGPT")
    assert model.mistake == "no-mask"
    loss = float(model.message.split("fell to ")[1].split(",")[0])
    assert loss < 0.1 < entropy()


def test_the_judge_tells_how_far_training_is_and_heads_become_sharp(tmp_path):
    path = tmp_path / LESSON.file
    path.write_text(LESSON.solution, encoding="utf-8")
    lines = []
    outcomes = judge_here(LESSON, path, tell=lines.append)
    assert is_done(outcomes), outcomes
    assert [outcome.task for outcome in outcomes] == [task.name for task in tasks_of(LESSON)]
    told = [line["doing"] for line in lines if "doing" in line]
    assert told[0].startswith("Training: step 25 of at most 600, loss ")
    assert 6 <= len(told) <= 12, "about 200 steps, as the lesson says"
    start = next(outcome for outcome in outcomes if outcome.task == "loss_at_the_start")
    assert 3.9 < float(start.message.split(" is ")[1].split(";")[0]) < 4.1, "about 4.0, as the lesson says"
    picture = next(outcome.picture for outcome in outcomes if outcome.picture)
    before, after = (torch.tensor(weights) for weights in picture.weights)
    keys = [key for _, key in block.LOOKS_BACK.values()]
    assert before[range(len(keys)), keys].max() < 0.3
    assert after[range(len(keys)), keys].mean() > 0.5
