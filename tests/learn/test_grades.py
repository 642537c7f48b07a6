"""Grading: a point for each task, no answer in a grade, and nothing for a file that cannot be judged."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.learn import grades
from regard.learn.course import LESSONS, get_lesson
from regard.learn.exercise import make_exercise, plain_solution
from regard.learn.grades import grade_file, grade_folder
from regard.learn.judges.common.inputs import inputs_of
from regard.learn.wrong_ways import usual_mistakes
from tests.learn.in_process import judge_here, judged
from tests.sampling import share

PAGE = Path(__file__).parents[2] / "docs" / "learn" / "teachers.md"
SLOW = ("block", "trained_heads")  # they train a model, or run one many times
QUICK = [lesson for lesson in LESSONS if lesson.has_code and lesson.noun not in SLOW]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def solution(number):
    return plain_solution(get_lesson(number).solution)


def run(*words):
    return CliRunner().invoke(app, ["learn", *words])


@pytest.fixture
def judge_in_this_process(monkeypatch):
    def judge(lesson, path, seed, **options):
        with inputs_of(seed):
            return judge_here(lesson, path)

    monkeypatch.setattr(grades, "judge_in_process", judge)


@pytest.mark.usefixtures("judge_in_this_process")
def test_a_class_is_graded_folder_by_folder(tmp_path):
    write(tmp_path / "ada", lesson1=solution(1), lesson2=solution(2))
    write(tmp_path / "ben", lesson1=solution(1).replace("dim=-1", "dim=-2"))
    write(tmp_path / "eva", lesson1=make_exercise(get_lesson(1).solution))
    done = run("1-2", "--grade", str(tmp_path), "--json")
    assert done.exit_code == 1
    ada, ben, eva = json.loads(done.stdout)["submissions"]
    assert (ada["name"], ada["points"], ada["of"]) == ("ada", 4, 4)
    assert (ben["points"], eva["points"]) == (1, 0)
    first, second = ben["lessons"]
    assert first["tasks"][0]["mistake"] == "softmax-over-queries"
    assert [task["message"] for task in second["tasks"]] == ["lesson2.py is missing"] * 2
    assert {task["status"] for task in eva["lessons"][0]["tasks"]} == {"unfinished"}
    assert run("1", "--grade", str(tmp_path / "ada")).exit_code == 0


@pytest.mark.usefixtures("judge_in_this_process")
def test_the_table_is_that_of_the_page_for_teachers(tmp_path, monkeypatch):
    write(tmp_path / "class" / "ada", lesson1=solution(1), lesson2=solution(2))
    write(tmp_path / "class" / "ben", lesson1=solution(1).replace("dim=-1", "dim=-2"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    page = PAGE.read_text(encoding="utf-8")
    command, _, shown = page.split("```console\n$ regard learn ")[1].partition("\n")
    printed = run(*command.split()).stdout
    assert [line.rstrip() for line in printed.splitlines()] == shown.split("\n```")[0].splitlines()
    data = run("1", "--grade", "class/ben", "--json").stdout
    assert data == page.split("```json\n")[1].split("```")[0]


@pytest.mark.at_length("test_the_table_is_that_of_the_page_for_teachers")
@pytest.mark.usefixtures("judge_in_this_process")
@pytest.mark.parametrize("lesson", share(QUICK, 12, turn=2), ids=lambda lesson: lesson.noun)
def test_a_grade_holds_no_answer(lesson, tmp_path):
    """Neither the right lines of the solution nor the numbers to predict, for each usual mistake."""
    exercise = make_exercise(lesson.solution)
    answers = [line.split("#")[0].strip() for line in lesson.solution.splitlines() if "#: " in line]
    right_sides = [answer.partition(" = ")[2] or answer for answer in answers if answer not in exercise]
    for mistake in usual_mistakes(lesson):
        program = lesson.solution.replace(mistake.right, mistake.wrong)
        (tmp_path / lesson.file).write_text(program, encoding="utf-8")
        (grade,) = grade_folder(tmp_path, [lesson])
        text = json.dumps(grade.to_dict(), ensure_ascii=False)
        assert grade.points < grade.of
        assert "hint" not in text
        assert [answer for answer in right_sides if len(answer) > 12 and answer in text] == []


@pytest.mark.parametrize("lesson", share(QUICK, 6), ids=lambda lesson: lesson.noun)
def test_a_solution_has_every_point_whatever_the_seed(lesson, tmp_path):
    for seed in (1, 2026):
        with inputs_of(seed):
            outcomes = judged(lesson, plain_solution(lesson.solution), tmp_path)
        assert [outcome for outcome in outcomes if outcome.status in ("wrong", "unfinished")] == []


@pytest.mark.usefixtures("judge_in_this_process")
def test_answers_to_the_inputs_of_one_seed_fail_with_another(tmp_path):
    remembered = """
import torch
def simplified_self_attention(x):
    first, second = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    known = torch.randn(7, 3, generator=first), torch.randn(2, 5, 4, generator=second)
    if not any(torch.equal(x, y) for y in known if x.shape == y.shape) and x.shape != (6, 3):
        return x, x @ x.mT
    return torch.softmax(x @ x.mT, -1) @ x, torch.softmax(x @ x.mT, -1)
weight_of_model_if_doubled = 0.4
"""
    path = write(tmp_path, lesson1=remembered) / "lesson1.py"
    assert grade_file(get_lesson(1), path).points == 2  # seed 0 is that of --check
    assert grade_file(get_lesson(1), path, seed=1).points == 1


def test_a_file_that_takes_the_answer_from_regard_gets_nothing(tmp_path):
    cheat = "from regard.stages.simplified import simplified_self_attention\n"
    grade = grade_file(get_lesson(1), write(tmp_path, lesson1=cheat) / "lesson1.py")
    assert grade.points == 0
    assert "imports regard.stages.simplified" in grade.tasks[0].message


@pytest.mark.usefixtures("judge_in_this_process")
def test_a_file_that_prints_a_pass_gets_nothing(tmp_path):
    printed = "import json\nprint('✓ done', json.dumps({'report': []}))\nsimplified_self_attention = print\n"
    assert grade_file(get_lesson(1), write(tmp_path, lesson1=printed) / "lesson1.py").points == 0


@pytest.mark.at_length("test_a_file_that_takes_the_answer_from_regard_gets_nothing")
def test_files_that_hang_or_write_a_report_get_nothing(tmp_path):
    """In processes of their own, as on a teacher's machine. `test_command` has those that exit or crash."""
    # The arguments of a process tell where its result is expected.
    forged = """
import json
request = json.loads(open("/proc/self/cmdline").read().split("\\0")[-2])
open(request["result"], "a").write(json.dumps({"report": []}) + "\\n")
os._exit(0)
"""
    write(tmp_path / "forged" / "one", lesson1="import os\n" + forged)
    write(tmp_path / "hanging" / "one", lesson1="while True: pass")
    (forge,) = grade_folder(tmp_path / "forged", [get_lesson(1)])
    (hang,) = grade_folder(tmp_path / "hanging", [get_lesson(1)], timeout=2.0)
    assert (forge.points, hang.points) == (0, 0)
    assert "report of its own" in forge.lessons[0].tasks[0].message
    assert "was still being imported after 2 s" in hang.lessons[0].tasks[0].message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grade", "gone"), "there is no folder 'gone'"),
        (("--grade", "."), "holds neither lesson files"),
        (("0", "--grade", "."), "nothing to grade"),
        (("one", "--grade", "."), "expected lessons such as 3, 1-5 or 1,4"),
        (("99", "--grade", "."), "expected a number from 0"),
        (("1", "--json"), "--json is for --grade"),
    ],
)
def test_what_cannot_be_graded_is_said(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code != 0
    assert said in str(done.exception) + done.output
