"""Lessons 9, 11 and 12 beside Regard's own measurements; the names of mistakes outside of the catalogue."""

import inspect
import re

import pytest
import torch

from regard.attention.masks.named_masks import causal
from regard.checker.catalogue import CATALOGUE
from regard.heads import scores, uniform
from regard.learn.course import LESSONS, get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.judgement import judge_module
from regard.learn.judges import trained_heads, transplant
from regard.learn.judges.common import verdicts
from regard.learn.page import lesson_page
from regard.learn.wrong_ways import MODEL_MISTAKES, define, find_mistake
from regard.maps import attention_map
from tests.learn.in_process import judged


@pytest.mark.parametrize("kind", ["previous_token", "induction"])
def test_the_functions_of_lesson_11_give_the_scores_of_regard(kind):
    ids = torch.randint(5, (1, 20), generator=torch.Generator().manual_seed(0))
    q, k = torch.randn(2, 1, 3, 20, 4, generator=torch.Generator().manual_seed(1))
    m = attention_map(q, k, mask=causal)
    expected = getattr(scores(m, ids), kind)[0]
    own = [trained_heads.score(kind, head, ids[0]) for head in m.to_dense()[0]]
    assert own == pytest.approx(expected.tolist(), abs=1e-6)


def test_the_baseline_of_lesson_11_is_that_of_regard():
    ids = trained_heads.repeats()[:1]
    m = trained_heads.load_model().maps(ids)[0]
    null = scores(uniform(m), ids)
    for kind in ("previous_token", "induction"):
        assert trained_heads.baseline(kind) == pytest.approx(getattr(null, kind)[0, 0].item(), abs=1e-6)


def test_the_heads_of_the_solution_are_the_clearest():
    for kind, place in {"previous_token": (3, 3), "sink": (4, 2), "induction": (4, 0)}.items():
        table = trained_heads.scores_of_all(kind)
        assert divmod(int(table.argmax()), table.shape[1]) == place


def test_a_head_that_does_it_less_clearly_counts_too(tmp_path):
    lesson = get_lesson(11)
    program = lesson.solution.replace("previous_token_head = (3, 3)", "previous_token_head = (3, 2)")
    outcome = next(o for o in judged(lesson, program, tmp_path) if o.task == "previous_token_head")
    assert outcome.status == "done"
    assert "the clearest gives" in outcome.message


def test_the_reference_of_lesson_12_is_the_layer():
    """The solution, which judges the learner's, agrees with what the model's own layers gave."""
    for layer in range(6):
        out, weights = transplant._run(define("transplant", "TrainedAttention"), layer)
        given = transplant.layer_call(layer).out
        assert (out - given).abs().max() < 1e-5 * max(1, given.abs().max())
        assert transplant._exact(layer).dtype == torch.float64
        torch.testing.assert_close(weights.double(), transplant._exact(layer), atol=1e-5, rtol=0)


def test_another_pairing_gives_another_map():
    """In some weight of some layer by more than 0.5, as lesson 12 says."""
    program = plain_solution(get_lesson(12).solution)
    names = {"__name__": "neighbours"}
    exec(program.replace("x[..., : D // 2], x[..., D // 2 :]", "x[..., 0::2], x[..., 1::2]"), names)
    others = [transplant._run(names["TrainedAttention"], layer)[1] for layer in range(6)]
    differences = [(other - transplant._exact(layer)).abs().max() for layer, other in enumerate(others)]
    assert max(differences) > 0.5


def test_names_outside_of_the_catalogue_are_used_and_explained():
    assert not MODEL_MISTAKES.keys() & CATALOGUE.keys()
    with_code = [lesson for lesson in LESSONS if lesson.has_code]
    sources = "".join(inspect.getsource(x) for x in (*map(judge_module, with_code), verdicts))
    sources += "".join((lesson.folder / "judge.toml").read_text(encoding="utf-8") for lesson in with_code)
    for name, mistake in MODEL_MISTAKES.items():
        assert re.search(f"['\"]{name}['\"]", sources), name
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
        assert mistake.effect.endswith(".")
        assert mistake.fix
    assert find_mistake("no-such-mistake") is None


def test_a_page_explains_a_name_outside_of_the_catalogue():
    assert f"title='{MODEL_MISTAKES['no-residual'].effect}'" in lesson_page(get_lesson(10))
