"""`regard learn` as a learner meets it: nothing of theirs is overwritten, and every file gets a sentence."""

import json
import os
import re
import threading

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.cli import learn as command
from regard.learn.course import LESSONS
from regard.learn.exercise import plain_solution
from regard.learn.hunt import make_puzzle
from regard.learn.progress import read_progress
from tests.learn.in_process import judge_here
from tests.patience import wait_until
from tests.sampling import share

SIMILARITY = LESSONS[1]


def learn(folder, *arguments):
    """Run the command in a folder, as from a shell."""
    return CliRunner().invoke(app, ["learn", *arguments, "--no-open", "--folder", str(folder)])


def write(folder, program):
    (folder / "lesson1.py").write_text(program, encoding="utf-8")


@pytest.fixture
def in_process(monkeypatch):
    """The command judges in this process."""
    monkeypatch.setattr("regard.learn.judgement.judge_in_process", judge_here)


def test_the_list_shows_every_lesson_and_what_is_done(tmp_path):
    before = learn(tmp_path)
    assert before.exit_code == 0
    for lesson in LESSONS:
        assert lesson.title in before.output
    assert "regard learn 0" in before.output
    assert "✓" not in before.output
    learn(tmp_path, "0")
    after = learn(tmp_path)
    assert "✓ Why attention" in after.output
    assert "regard learn 1" in after.output


def test_a_lesson_writes_its_file_and_pages_and_says_what_to_do(tmp_path):
    result = learn(tmp_path, "1")
    assert result.exit_code == 0, result.output
    program = (tmp_path / "lesson1.py").read_text(encoding="utf-8")
    assert "scores = ...  #" in program
    assert "regard learn 1 --check" in result.output
    page = (tmp_path / "regard-lessons" / "lesson1.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert not re.search(r"(src|<link[^>]* href)=['\"]?(https?:)?//", page)  # papers are linked, not loaded


@pytest.mark.usefixtures("in_process")
def test_what_the_learner_wrote_is_never_overwritten(tmp_path):
    write(tmp_path, "mine = 1\n")
    for arguments in (("1",), ("1", "--again"), ("1", "--check")):
        learn(tmp_path, *arguments)
        assert (tmp_path / "lesson1.py").read_text(encoding="utf-8") == "mine = 1\n"
    (tmp_path / "regard-lessons").mkdir(exist_ok=True)
    page = tmp_path / "regard-lessons" / "lesson2.html"
    page.write_text("my own notes", encoding="utf-8")
    result = learn(tmp_path, "1")
    assert "is not a lesson's page" in str(result.exception)
    assert page.read_text(encoding="utf-8") == "my own notes"


def test_replacing_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_may_replace", lambda path: True)
    write(tmp_path, "mine = 1\n")
    learn(tmp_path, "1", "--again")
    assert "scores = ..." in (tmp_path / "lesson1.py").read_text(encoding="utf-8")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (None, 2, "there is no"),
        ("", 2, "is empty: regard learn 1 --again writes it anew"),
        ("def f(:\n", 2, "lesson1.py, line 1: invalid syntax"),
        ("\0", 2, "null bytes"),
        ("x = 1\n", 3, "has no `simplified_self_attention`"),
        ("import no_such_library\n", 2, "No module named 'no_such_library'"),
        ("raise SystemExit(3)\n", 2, "calls exit()"),
        (
            "def simplified_self_attention(x):\n    pass\nweight_of_model_if_doubled = 1\n",
            1,
            "is `return` missing?",
        ),
    ],
)
def test_every_file_gets_a_sentence(tmp_path, program, code, said):
    if program is not None:
        write(tmp_path, program)
    result = learn(tmp_path, "1", "--check")
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "program",
    share(
        [
            "while True:\n    pass\n",
            "def simplified_self_attention(x):\n    while True: pass\nweight_of_model_if_doubled = 0\n",
        ],
        2,
    ),
)
def test_an_endless_loop_ends_with_a_sentence(tmp_path, program):
    write(tmp_path, program)
    result = learn(tmp_path, "1", "--check", "--timeout", "2")
    assert result.exit_code == 2
    assert "2 s" in result.output


def test_a_right_file_is_shown_its_own_weights_and_the_next_lesson(tmp_path):
    write(tmp_path, plain_solution(SIMILARITY.solution))
    result = learn(tmp_path, "1", "--check")
    assert result.exit_code == 0, result.output
    assert "0.4298" in result.output
    assert "Lesson 1 is done" in result.output
    assert "regard learn 2" in result.output
    assert (tmp_path / "regard-lessons" / "lesson1-yours.svg").exists()
    assert "lesson1-yours.svg" in (tmp_path / "regard-lessons" / "lesson1.html").read_text(encoding="utf-8")
    assert 1 in read_progress(tmp_path).done


@pytest.mark.usefixtures("in_process")
def test_a_wrong_file_is_told_the_mistake_first_and_the_fix_on_request(tmp_path):
    write(tmp_path, SIMILARITY.solution.replace("dim=-1", "dim=-2"))
    first = " ".join(learn(tmp_path, "1", "--check").output.split())
    assert first.startswith("✗ simplified_self_attention: softmax-over-queries.")
    assert "hint:" not in first
    assert "regard learn 1 --hint" in first
    second = learn(tmp_path, "1", "--hint")
    assert second.exit_code == 1
    assert "hint:" in second.output
    progress = read_progress(tmp_path)
    assert progress.met == ["softmax-over-queries"]
    assert progress.tries == {1: 2}
    assert progress.done == {}


@pytest.mark.usefixtures("in_process")
def test_a_mistake_is_explained_in_the_code_of_its_lesson(tmp_path):
    write(tmp_path, SIMILARITY.solution.replace("dim=-1", "dim=-2"))
    command = "explain-mistake softmax-over-queries --lesson 1"
    assert command in learn(tmp_path, "1", "--check").output
    said = CliRunner().invoke(app, command.split()).output
    assert "  +     weights = torch.softmax(scores, dim=-1)" in said
    assert "softcap" not in said
    other = CliRunner().invoke(app, ["explain-mistake", "no-scale", "--lesson", "1"])
    assert "none of the mistakes that lesson 1 knows" in str(other.exception)


@pytest.mark.usefixtures("in_process")
def test_a_far_guess_has_a_sign_of_its_own_and_code_is_not_cut(tmp_path):
    write(tmp_path, plain_solution(SIMILARITY.solution).replace("= 0.4298", "= 0.1"))
    result = learn(tmp_path, "1", "--check")
    assert result.exit_code == 0
    assert "→ weight_of_model_if_doubled" in result.output
    (tmp_path / "regard-progress.json").unlink()
    shown = "".join(learn(tmp_path, "hunt").output.split())
    puzzle = make_puzzle(read_progress(tmp_path).puzzle)
    assert max(puzzle.code.splitlines(), key=len).strip()[-12:].replace(" ", "") in shown


@pytest.mark.usefixtures("in_process")
def test_watching_judges_at_every_save_until_it_is_right(tmp_path):
    write(tmp_path, SIMILARITY.solution.replace("dim=-1", "dim=-2"))

    def mend():
        wait_until((tmp_path / "regard-progress.json").exists)
        write(tmp_path, plain_solution(SIMILARITY.solution))
        os.utime(tmp_path / "lesson1.py")

    learner = threading.Thread(target=mend)
    learner.start()
    result = learn(tmp_path, "1", "--watch")
    learner.join()
    assert result.exit_code == 0
    assert "softmax-over-queries" in result.output
    assert "Lesson 1 is done" in result.output


@pytest.mark.parametrize("text", ["{", "[]", '{"done": 3}', '{"done": {"x": "y"}, "tries": {}}'])
def test_a_broken_progress_file_is_named_and_kept(tmp_path, text):
    path = tmp_path / "regard-progress.json"
    path.write_text(text, encoding="utf-8")
    result = learn(tmp_path)
    assert "regard-progress.json" in str(result.exception)
    assert path.read_text(encoding="utf-8") == text


def test_the_solution_and_the_notebook_are_to_be_had(tmp_path):
    assert learn(tmp_path, "1", "--solution").output == plain_solution(SIMILARITY.solution)
    learn(tmp_path, "1", "--notebook")
    notebook = json.loads((tmp_path / "lesson1.ipynb").read_text(encoding="utf-8"))
    assert any("softmax" in cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("wrong", ["99", "three", "1.5"])
def test_a_lesson_that_is_not_there_is_named(tmp_path, wrong):
    result = learn(tmp_path, wrong)
    assert result.exit_code != 0
    assert wrong in str(result.exception) + result.output


def test_the_hunt_draws_a_puzzle_and_judges_answers(tmp_path):
    shown = learn(tmp_path, "hunt")
    assert shown.exit_code == 0
    mistake = read_progress(tmp_path).puzzle
    assert mistake in shown.output
    assert "--answer" in shown.output
    wrong = learn(tmp_path, "hunt", "--answer", "banana")
    assert wrong.exit_code == 1
    assert "no mistake called 'banana'" in wrong.output
    assert read_progress(tmp_path).attempts == 0
    right = learn(tmp_path, "hunt", "--answer", mistake.upper().replace("-", " "))
    assert right.exit_code == 0
    assert "Right" in right.output
    progress = read_progress(tmp_path)
    assert progress.found == [mistake]
    assert progress.puzzle == ""


def test_what_was_found_is_not_drawn_again(tmp_path):
    found = set()
    for _ in range(5):
        learn(tmp_path, "hunt")
        mistake = read_progress(tmp_path).puzzle
        assert mistake not in found
        learn(tmp_path, "hunt", "--answer", mistake)
        found.add(mistake)
    assert set(read_progress(tmp_path).found) == found


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("torch.softmax(scores)", "torch.softmax(scores, dim=-1)"),
        ("scores @ scores[:3]", "line 30: weights = torch.softmax(scores, dim=-1)"),
        ("W_q(x)", "a name has to be assigned or imported first"),
        ("scores if scores > 0 else x", "need one answer"),
    ],
)
def test_an_error_of_pytorch_has_a_hint(tmp_path, line, hint):
    write(tmp_path, SIMILARITY.solution.replace("torch.softmax(scores, dim=-1)", line))
    asked = [learn(tmp_path, "1", "--hint") for _ in range(3)]
    assert {result.exit_code for result in asked} == {1}
    assert any(hint in " ".join(result.output.split()).partition("hint:")[2] for result in asked)


@pytest.mark.usefixtures("in_process")
def test_each_hint_about_the_same_says_more(tmp_path):
    line = "weights = torch.softmax(scores, dim=-1)"
    write(tmp_path, SIMILARITY.solution.replace("dim=-1", "dim=-2"))
    asked, placed, written, over = (
        " ".join(learn(tmp_path, "1", "--hint").output.split()).partition("hint: ")[2] for _ in range(4)
    )
    assert "print `weights` for a few tokens" in asked
    assert "line " not in asked
    assert "Another --hint says more." in asked
    assert "line 30: `weights` has columns that sum to 1" in placed
    assert line not in placed
    assert f"line 30: {line}" in written
    assert f"line 30: {line}" in over
    assert "(regard learn 1 --solution has the answer)" in over
    assert "says more" not in over
    # Another try at the same mistake begins with the first hint, even if it gets the same message.
    write(tmp_path, SIMILARITY.solution.replace("scores, dim=-1", "scores, -2"))
    assert "hint: print" in learn(tmp_path, "1", "--hint").output
    write(tmp_path, SIMILARITY.solution.replace("x @ x.mT", "x @ x"))
    assert "line 29" not in learn(tmp_path, "1", "--hint").output.partition("hint: ")[2]


@pytest.mark.usefixtures("in_process")
def test_what_the_code_prints_is_shown_and_bounded(tmp_path):
    program = plain_solution(SIMILARITY.solution)
    line = "    scores = x @ x.mT"
    assert line in program
    write(tmp_path, program.replace(line, f"    print('shape', tuple(x.shape))\n{line}"))
    shown = learn(tmp_path, "1", "--check").output
    assert "Your code printed:\n  shape (" in shown
    write(tmp_path, program.replace(line, f"    print('a line\\n' * 10**5)\n{line}"))
    assert len(learn(tmp_path, "1", "--check").output.splitlines()) < 50


@pytest.mark.usefixtures("in_process")
def test_no_hint_gives_a_number_away(tmp_path):
    scale = LESSONS[3]
    program = plain_solution(scale.solution).replace("= math.sqrt(64)", "= 16")
    (tmp_path / "lesson3.py").write_text(program, encoding="utf-8")
    told = " ".join(learn(tmp_path, "3", "--hint").output for _ in range(4))
    assert "less than that" in " ".join(told.split())
    assert "is 8" not in told
    assert "sqrt(64)" not in told


def test_the_tour_names_its_command_and_is_done_when_its_question_is_answered(tmp_path):
    begun = learn(tmp_path, "18")
    assert "regard inspect" in begun.output
    assert "regard learn 18 --check" in begun.output
    asked = learn(tmp_path, "18", "--check")
    assert asked.exit_code == 3
    assert "--answer induction|previous-token|sink" in asked.output
    assert learn(tmp_path, "18", "--answer", "sink").exit_code == 1
    assert 18 not in read_progress(tmp_path).done
    assert learn(tmp_path, "18", "--answer", "Induction").exit_code == 0
    assert 18 in read_progress(tmp_path).done


def test_a_mistake_of_the_course_alone_is_explained_too():
    said = CliRunner().invoke(app, ["explain-mistake", "sinks-evicted"]).output
    assert "The first keys are gone" in said
    assert "--lesson 14" in said
    merge = CliRunner().invoke(app, ["explain-mistake", "softmax-overflow", "--lesson", "15"]).output
    assert "In merge: Right for small numbers" in merge
    evict = CliRunner().invoke(app, ["explain-mistake", "cache-in-wrong-order", "--lesson", "14"]).output
    assert "In evict: The latest keys stand before the first ones" in " ".join(evict.split())
    assert evict.startswith("cache-in-wrong-order\n")
    joined = CliRunner().invoke(app, ["explain-mistake", "masks-joined-by-or", "--lesson", "14"]).output
    assert "`causal & near | first`" in joined


@pytest.mark.parametrize(("name", "number"), [("window-dropped", 14), ("inverted-mask", 17)])
def test_a_mistake_that_a_lesson_has_no_words_for_is_explained_in_general(name, number):
    general = CliRunner().invoke(app, ["explain-mistake", name])
    said = CliRunner().invoke(app, ["explain-mistake", name, "--lesson", str(number)])
    assert said.exit_code == 0
    assert said.output == general.output
