"""Every hint is followed: none leads into another error or to the same verdict, or gives a number away."""

import re
import tomllib
from pathlib import Path

import pytest

from regard.learn.course import LESSONS, get_lesson
from regard.learn.exercise import plain_solution
from regard.learn.wrong_ways import definition, edit, judge_table, usual_mistakes, wrong_ways
from tests.learn.hints import check_that_hints_lead_to_the_solution
from tests.learn.in_process import judge_one, task_with
from tests.sampling import share

TABLES = tomllib.loads(Path(__file__).with_name("beginners_mistakes.toml").read_text(encoding="utf-8"))
HINTED = TABLES["hinted"]
# A lesson, the prediction in its solution, a guess in its place, and what is said to it.
GUESSES = (
    (1, "= 0.4298", "= 1 / 6", "guessed", "is 0.4298"),
    (1, "= 0.4298", "= 0.45", "done", "is 0.4298"),
    (1, "= 0.4298", "= 46", "wrong", "between 0 and 1"),
    (1, "= 0.4298", "= 0,43", "unfinished", "with a point"),
    (2, "= 0.4743", "= 0.8187", "guessed", "is 0.4743"),
    (3, "= math.sqrt(64)", "= 16", "wrong", "more than 10% off"),
    (3, "= math.sqrt(64)", "= 7.5", "done", "is 8"),
    (3, "= math.sqrt(64)", "= 64", "wrong", "64 is the variance"),
    (3, "= math.sqrt(64)", "= 1", "wrong", "of one product"),
    (3, "= math.sqrt(64)", "= 1 / 8", "wrong", "what to multiply"),
    (3, "= math.sqrt(64)", "= '8'", "unfinished", "expected a number"),
    (5, "= 1.503", "= 0.7518", "wrong", "multiplies them by"),
    (5, "= 1.503", "= 1.0", "wrong", "on average only"),
    (5, "= 1.503", "= 0.993", "wrong", "where the last weight is dropped"),
    (6, "= 12288", "= 12288 * 8", "wrong", "as wide as the model"),
    (6, "= 12288", "= 1536", "wrong", "one of the eight heads"),
    (7, "the_map = 12", "the_map = 36", "wrong", "read themselves"),
    (7, "the_map = 12", "the_map = 8", "wrong", "counts the tokens"),
    (8, "= -0.99", "= 0.99", "wrong", "below 0"),
    (8, "= -0.99", "= 1.0", "wrong", "same position"),
    (8, "= -0.99", "= 0.1411", "wrong", "the sine"),
    (9, "a_cache = 131", "a_cache = 65.5", "guessed", "is 131.1"),
    (11, "the_loss = 2.5", "the_loss = 10", "guessed", "is 2.49"),
    (11, "= (4, 2)", "= (4, 3)", "wrong", "the clearest head gives 0.76"),
    (12, "= 1e-6", "= 1e-7", "done", "you guessed 1e-07"),
    (12, "= 1e-6", "= 0", "guessed", "you guessed 0"),
    (13, "groups = 21.5", "groups = 10.7", "wrong", "only the keys"),
    (13, "groups = 21.5", "groups = 5", "wrong", "more than 5% off"),
    (14, "layers = 9", "layers = 12", "wrong", "counts each token itself"),
    (15, "scores = 268", "scores = 67.1", "wrong", "each takes 4 bytes"),
    (16, "large = 64", "large = 128", "wrong", "does not hold keys alone"),
    (16, "large = 64", "large = 65", "wrong", "one token too many"),
    (17, "lost = 0.073", "lost = 0.75", "wrong", "they are the weak ones"),
    (17, "lost = 0.073", "lost = 0.5", "wrong", "more than 20% off"),
)


def cases(table):
    """The lesson, the right text, the wrong one and what is said, of every mistake of a table."""
    return [
        (int(number), right, *((wrong, "") if isinstance(wrong, str) else wrong))
        for number, mistakes in TABLES[table].items()
        for right, wrongs in mistakes.items()
        for wrong in wrongs
    ]


def known_ways():
    """The wrong ways of functions that the lessons know, each as another definition."""
    return [
        (
            lesson.number,
            definition(lesson.noun, task),
            edit(lesson.noun, task, way.right, way.wrong),
            way.said or way.mistake,
        )
        for lesson in LESSONS
        if lesson.has_code
        for task, table in judge_table(lesson.noun).items()
        if "results" in table
        for way in wrong_ways(lesson.noun, task)
    ]


# Those of lessons 13 to 17 and the wrong ways are as many as all others, and judged by one mechanism.
LATE = 13
EARLY_MISTAKES = [case for case in cases("mistakes") if case[0] < LATE]
LATE_MISTAKES = [case for case in cases("mistakes") if case[0] >= LATE] + known_ways()
# The checker takes a second to name one of these, so that a run has a share of them.
SLOW = cases("by_checker")
USUAL = [
    (lesson.number, mistake.right, mistake.wrong, mistake.name)
    for lesson in LESSONS
    if lesson.has_code
    for mistake in usual_mistakes(lesson)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("number", "right", "wrong", "said"),
    share(EARLY_MISTAKES, 24) + share(LATE_MISTAKES, 24) + share(SLOW, 96) + share(USUAL, 16),
)
def test_a_hint_leads_out_of_a_mistake(number, right, wrong, said):
    lesson = get_lesson(number)
    assert right in lesson.solution
    told = HINTED.get(str(number), {}).get(wrong)
    program = plain_solution(lesson.solution.replace(right, wrong))
    hinted = (wrong, told) if told else None
    check_that_hints_lead_to_the_solution(lesson, task_with(lesson, right), program, said, hinted)


@pytest.mark.parametrize(("number", "right", "guess", "status", "said"), GUESSES)
def test_a_guess_is_judged_by_its_distance(number, right, guess, status, said):
    lesson = get_lesson(number)
    program = plain_solution(lesson.solution.replace(right, guess))
    outcome = judge_one(lesson, task_with(lesson, right), program)
    assert (outcome.status, said in outcome.message) == (status, True), outcome
    if status == "wrong":
        assert outcome.hint
        told = " ".join((outcome.message, *outcome.hints))
        answer = {"math.sqrt(64)": "8"}.get(right.split("= ")[1], right.split("= ")[1])
        assert not re.search(rf"(?<![\d.,]){re.escape(answer)}(?![\d.,])", told), told
