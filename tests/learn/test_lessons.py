"""Every lesson: its text runs, its solution is right, and blanks are met kindly."""

import ast
import doctest
import re

import pytest

from regard import stages
from regard.learn.course import LESSONS
from regard.learn.exercise import find_blanks, make_exercise
from regard.learn.judgement import is_done, tasks_of
from regard.learn.lesson import FOLDER
from regard.learn.wrong_ways import find_mistake, usual_mistakes
from tests.learn.in_process import judged, outcomes_of_solution
from tests.sampling import share

WITH_CODE = [lesson for lesson in LESSONS if lesson.has_code]
SECTIONS = [
    "The picture",
    "The formula",
    "By hand",
    "In code",
    "Predict, then look",
    "Usual mistakes",
    "Takeaways",
    "Further",
]


def name_of(lesson):
    return lesson.noun


def test_every_lesson_is_there():
    assert [lesson.folder.name for lesson in LESSONS] == sorted(folder.name for folder in FOLDER.iterdir())


@pytest.mark.parametrize("lesson", LESSONS, ids=name_of)
def test_a_lesson_has_every_section_in_order(lesson):
    assert lesson.text.startswith(f"# {lesson.number} {lesson.title}\n")
    headings = re.findall(r"^## (.*)$", lesson.text, flags=re.MULTILINE)
    expected = SECTIONS if lesson.has_code else ["The picture", "Takeaways", "Further"]
    assert [heading for heading in headings if heading in expected] == expected
    assert "![" in lesson.text
    assert (lesson.folder / "picture.svg").stat().st_size < 400_000


@pytest.mark.parametrize("lesson", share(LESSONS, 4), ids=name_of)
def test_the_sessions_of_a_lesson_run(lesson):
    result = doctest.testfile(
        str(lesson.folder / "lesson.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS,
        encoding="utf-8",
    )
    assert result.failed == 0
    assert result.attempted >= (3 if lesson.has_code else 0)


@pytest.mark.parametrize("lesson", LESSONS, ids=name_of)
def test_the_links_of_a_lesson_lead_somewhere(lesson):
    for target in re.findall(r"\]\(([^)#]+)", lesson.text):
        assert target.startswith("https://") or (lesson.folder / target).exists(), target


@pytest.mark.parametrize("lesson", WITH_CODE, ids=name_of)
def test_the_usual_mistakes_in_the_text_are_those_that_are_planted(lesson):
    table = lesson.text.split("## Usual mistakes")[1].split("\n## ")[0]
    named = re.findall(r"^\| `([\w-]+)`", table, flags=re.MULTILINE)
    assert named == [mistake.name for mistake in usual_mistakes(lesson)]
    assert len(named) >= 3
    assert all(find_mistake(name) for name in named)
    assert all(lesson.solution.count(mistake.right) == 1 for mistake in usual_mistakes(lesson))


@pytest.mark.parametrize("lesson", LESSONS[1:10], ids=name_of)
def test_what_a_lesson_builds_is_a_stage_without_its_checks_and_types(lesson):
    program = (lesson.folder / "solution.py").read_text(encoding="utf-8")
    imported = re.findall(r"^from regard\.stages\.\w+ import (.*)$", program, flags=re.MULTILINE)
    names = {name for line in imported for name in line.split(", ")}
    assert names
    assert names <= {*stages.__all__}
    tree = ast.parse(lesson.solution)
    assert names <= {getattr(node, "name", None) for node in tree.body}
    for node in ast.walk(tree):
        assert not getattr(node, "annotation", None)
        assert not getattr(node, "returns", None)
        assert getattr(node, "id", "") not in ("check_sequence", "check_settings", "check_tokens")


@pytest.mark.parametrize("lesson", [x for x in WITH_CODE if x.noun != "block"], ids=name_of)
def test_the_solution_is_right(lesson):
    """That of lesson 10 trains a model: `test_sentences` has it."""
    outcomes = outcomes_of_solution(lesson.number)
    assert is_done(outcomes), outcomes
    assert [outcome.task for outcome in outcomes] == [task.name for task in tasks_of(lesson)]


@pytest.mark.parametrize("lesson", WITH_CODE, ids=name_of)
def test_an_unfinished_file_is_met_with_what_is_left(lesson, tmp_path):
    exercise = make_exercise(lesson.solution)
    assert exercise != lesson.solution
    ast.parse(exercise)
    tasks = tasks_of(lesson)
    assert all(find_blanks(exercise, task.name) for task in tasks), "every task has something to write"
    assert not any(find_blanks(lesson.solution, task.name) for task in tasks)
    outcomes = judged(lesson, exercise, tmp_path)
    assert {outcome.status for outcome in outcomes} == {"unfinished"}
    assert all("line" in outcome.message for outcome in outcomes)


@pytest.mark.parametrize("lesson", WITH_CODE, ids=name_of)
def test_the_file_says_what_it_is_and_how_to_go_on(lesson):
    docstring = ast.get_docstring(ast.parse(lesson.solution)) or ""
    assert docstring.startswith(f"Lesson {lesson.number}, ")
    for option in ("--check", "--watch", "--hint"):
        assert f"regard learn {lesson.number} {option}" in docstring
