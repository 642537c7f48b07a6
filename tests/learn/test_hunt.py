"""The bug hunt: every puzzle hides its mistake, is what the checker says it is, and is judged kindly."""

import pytest

import regard.checker
from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.examples import TEMPLATES, loaded_program
from regard.learn.hunt import judge_answer, make_hint, make_puzzle, solve, tell_apart
from tests.sampling import share, together

PUZZLES = {name: make_puzzle(name) for name in CATALOGUE}
# The checker names each planted program (tests/checker/test_corpus.py). What the lessons' names change is
# checked here on every fourteenth.
CHECKED = share([name for name in PUZZLES if PUZZLES[name].kind in TEMPLATES], 56)


@together("name", CATALOGUE)
def test_a_puzzle_is_a_short_program_that_does_not_give_its_name_away(name):
    puzzle = PUZZLES[name]
    compile(puzzle.code, name, "exec")
    assert f" {puzzle.subject}(" in puzzle.code
    assert len(puzzle.code.splitlines()) <= 50
    assert max(len(line) for line in puzzle.code.splitlines()) <= 110
    assert name not in puzzle.code
    assert name.replace("-", "_") not in puzzle.code
    assert name.replace("-", " ") not in puzzle.code.lower()


@together("name", CATALOGUE)
def test_there_are_four_candidates_of_the_theme_with_the_answer_among_them(name):
    puzzle = PUZZLES[name]
    assert len(set(puzzle.candidates)) == 4
    assert name in puzzle.candidates
    others = [other for other in puzzle.candidates if CATALOGUE[other] not in THEMES[puzzle.theme]]
    assert len(others) <= max(0, 4 - len(THEMES[puzzle.theme]))
    for number, candidate in enumerate(puzzle.candidates, 1):
        assert judge_answer(puzzle, str(number)).right is (candidate == name)


@pytest.mark.parametrize("name", CHECKED)
def test_the_checker_names_the_mistake_of_a_puzzle(name):
    puzzle = PUZZLES[name]
    with loaded_program(puzzle.code, puzzle.subject) as subject:
        report = regard.checker.check(subject)
    assert report.diagnoses[0].name == name, str(report)


@together("name", CATALOGUE)
def test_spelling_does_not_matter_much(name):
    puzzle = PUZZLES[name]
    for answer in (name, name.upper(), name.replace("-", " "), name.replace("-", "_"), f" `{name}`. "):
        assert judge_answer(puzzle, answer).right, answer
    letter = len(name) // 2
    assert judge_answer(puzzle, name[:letter] + name[letter + 1 :]).right


def test_the_same_numbers_count_as_right_and_it_says_so():
    answer = judge_answer(PUZZLES["scaled-by-width"], "scaled twice")
    assert answer.right
    assert "same" in answer.text
    assert "scaled-twice" not in PUZZLES["scaled-by-width"].candidates


@together("name", CATALOGUE)
def test_a_wrong_answer_is_told_what_differs_without_the_solution(name):
    puzzle = PUZZLES[name]
    others = {mistake.name for mistake in THEMES[puzzle.theme]} | {"no-scale", "alibi-slopes"}
    for other in others - {name}:
        text = tell_apart(puzzle, CATALOGUE[other])
        assert text.startswith(f"Not {other}: that is attention ")
        assert name not in text.replace(other, "")


def test_an_unknown_answer_is_answered_with_its_neighbours():
    answer = judge_answer(PUZZLES["no-scale"], "the mask is inverted")
    assert not answer.right
    assert answer.name is None
    assert "inverted-mask" in judge_answer(PUZZLES["no-scale"], "mask-inverted").text
    assert judge_answer(PUZZLES["no-scale"], "").name is None
    assert judge_answer(PUZZLES["no-scale"], "7").name is None


@together("name", CATALOGUE)
def test_hints_come_from_the_second_try_on_and_end_at_a_line(name):
    puzzle = PUZZLES[name]
    wrong = next(candidate for candidate in puzzle.candidates if candidate != name)
    assert judge_answer(puzzle, wrong, 1).hint == ""
    assert judge_answer(puzzle, wrong, 2).hint.endswith(CATALOGUE[name].symptom)
    third = make_hint(puzzle, 3)
    assert third.startswith(("Look around line ", "A line is missing. "))
    assert name not in make_hint(puzzle, 2) + third
    assert name in solve(puzzle)
