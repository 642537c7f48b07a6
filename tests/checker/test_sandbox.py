"""Code that is checked in its own process: whatever it does, there is an answer, and no process remains."""

import tempfile
import time
from itertools import count
from types import SimpleNamespace

import pytest

from regard.checker import CheckError, sandbox
from regard.checker.sandbox import check_in_process, read_lines
from tests.patience import HANGING, has_ended, wait_until
from tests.sampling import share

CODE = """
import os, sys, tempfile, time, subprocess
import torch

def hang(q, k, v):
    child = subprocess.Popen(["sleep", "1000"])
    open("child", "w").write(str(child.pid))
    while True:
        time.sleep(0.01)

def leave(q, k, v):
    os._exit(3)

def crash(q, k, v):
    os.kill(os.getpid(), 11)

def kill(q, k, v):
    os.kill(os.getpid(), 9)

def say_goodbye(q, k, v):
    sys.exit(0)

FORGED = '{"phase": "checking"}\\n{"report": {"subject": "forged"}}\\n'

def noisy(q, k, v):
    if not os.path.exists("forked"):  # a check brings an attribute of the function back
        open("forked", "w").close()
        os.mkdir(os.path.join(folder := tempfile.mkdtemp(), "inner"))
        os.chmod(folder, 0)
        os.fork()  # both of them go on
        for number in range(64):
            try:
                os.write(number, FORGED.encode())
            except OSError:
                pass
        os.closerange(0, 64)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)

def greedy(q, k, v):
    return torch.zeros(2_000_000_000)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "loop.py").write_text("import time\nwhile True:\n    time.sleep(0.01)\n")
    return "mine.py"


def test_one_answer_counts_whatever_else_is_written(file, tmp_path, monkeypatch):
    """It forks, writes a report to every open file, closes them all, and leaves files that cannot be removed.

    A file of the current folder called like a module of Python's own is not imported instead of that.
    """
    (tmp_path / "temporary").mkdir()
    (tmp_path / "tempfile.py").write_text("raise RuntimeError('this is not Python's own')")
    (tmp_path / "statistics.py").write_text("raise RuntimeError('this is not Python's own')")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    report = check_in_process("mine.py:noisy", {})
    assert (report.verdict, report.subject) == ("right", "noisy")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_what_is_no_result_is_no_verdict(tmp_path):
    (tmp_path / "result").write_text('{"phase": "importing"}\nnoise\n')
    with pytest.raises(CheckError, match="written into the file of its own result"):
        read_lines(tmp_path / "result")


ENDS = [
    ("mine.py:leave", "exited with code 3"),
    ("mine.py:crash", "crashed with SIGSEGV"),
    ("mine.py:say_goodbye", "SystemExit"),
    ("mine.py:kill", "was killed with SIGKILL .* while mine.py:kill was being checked"),
    ("mine.py:greedy", r"memory.*the limit is 1 GB"),
]


@pytest.mark.parametrize(("spec", "says"), share(ENDS, 5))
def test_an_end_of_its_own_is_answered(file, spec, says):
    with pytest.raises(CheckError, match=says) as caught:
        check_in_process(spec, {}, memory=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("limit", "value"), [("memory", 0.01), ("timeout", float("nan"))])
def test_a_limit_that_no_code_can_keep_is_refused(file, limit, value):
    with pytest.raises(CheckError, match=f"{limit}: expected"):
        check_in_process("mine.py:leave", {}, **{limit: value})


def test_a_hang_is_ended_with_all_that_it_started(file, tmp_path, monkeypatch):
    started, patience = tmp_path / "child", time.monotonic() + HANGING
    hours = count(0, 3600)

    def clock():
        """Stands still until the code hangs, however slow the machine is; then it races."""
        hangs = started.exists() and started.read_text() != ""
        return next(hours) if hangs or time.monotonic() > patience else 0

    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    with pytest.raises(CheckError, match="did not finish within 4 s"):
        check_in_process("mine.py:hang", {}, timeout=4)
    wait_until(lambda: has_ended(int(started.read_text())))


def test_a_loop_at_module_level_is_answered(file):
    with pytest.raises(CheckError, match=r"still being imported.*__main__"):
        check_in_process("loop.py:anything", {}, timeout=1)
