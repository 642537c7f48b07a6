"""Processes under supervision, and signals that stop a run: nothing is left behind, whoever is killed."""

import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from regard.support import processes
from regard.support.processes import SIGNALS, stop_on_signal
from regard.support.supervision import Supervision
from tests.patience import has_ended, wait_until


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files, with a module `program` that runs its argument."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text("import os, signal, sys, time\nexec(sys.argv[1])\n")
    (tmp_path / "temporary").mkdir()
    source = [str(tmp_path / "code"), *(path for path in sys.path if path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(source))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def ends(processes, count):
    """Wait until the first so many processes have ended, and return how."""
    wait_until(lambda: all(processes.describe_end(index) for index in range(count)))
    return [processes.describe_end(index) for index in range(count)]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed with SIGKILL (from outside, or by the kernel"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was ended with SIGTERM (from outside"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", "crashed with signal"),
    ],
)
def test_how_a_process_ended_is_said(code, says, temporary):
    with Supervision("test") as processes:
        processes.start("program", code)
        assert ends(processes, 1)[0].startswith(says)
        assert processes.folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_each_process_has_its_environment_and_one_folder_for_temporary_files(temporary):
    code = "import tempfile; open(f'{tempfile.gettempdir()}/../{os.environ[\"NAME\"]}', 'w')"
    with Supervision("test") as processes:
        for name in ("first", "second"):
            processes.start("program", code, {"NAME": name})
        assert ends(processes, 2) == ["exited with code 0"] * 2
        assert {path.name for path in processes.folder.iterdir()} >= {"first", "second", "tmp"}


CHILD = "import subprocess; child = subprocess.Popen(['sleep', '3600']); "
WRITE = "open('{file}', 'w').write(f'{{os.getpid()}} {{child.pid}} '); child.wait()"


def test_the_end_of_the_block_ends_what_was_started(temporary):
    """In a thread, too; `global_state` compares the handlers and the threads after every test."""
    file = temporary.parent / "pids"

    def run():
        with Supervision("test") as processes:
            processes.start("program", CHILD + WRITE.format(file=file))
            wait_until(lambda: file.exists() and file.read_text().endswith(" "))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    wait_until(lambda: all(map(has_ended, map(int, file.read_text().split()))))
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_when_its_parent_is_killed(temporary):
    code = """
import sys, time
from regard.support.supervision import Supervision
with Supervision("test") as processes:
    processes.start("program", "open(sys.argv[0] + '.pid', 'w').write(str(os.getpid())); time.sleep(3600)")
    time.sleep(3600)
"""
    file = temporary.parent / "code" / "program.py.pid"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    wait_until(lambda: file.exists() and file.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: has_ended(int(file.read_text())))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_twice_is_one_request(number):
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_a_later_one_interrupts(monkeypatch):
    monkeypatch.setattr(processes, "SECONDS_OF_ONE_REQUEST", 0.0)
    with stop_on_signal():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_what_is_ignored_stays_ignored():
    """As SIGHUP is under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
