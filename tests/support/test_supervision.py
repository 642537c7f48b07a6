"""Processes under a supervisor: how they ended is known, and nothing of them is left, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from regard.support import supervision
from regard.support.supervision import Supervision
from tests.attack.signals import marked
from tests.patience import HANGING

SLEEPS = ["sleep", "3600"]


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def ends(processes: Supervision, count: int) -> list[str]:
    """Wait until the first so many processes have ended, and return how."""
    limit = time.monotonic() + HANGING
    while not all(said := [processes.describe_end(index) for index in range(count)]):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return said


def wait_for_folder(processes: Supervision) -> None:
    limit = time.monotonic() + HANGING
    while not (processes.folder / "tmp").is_dir():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, which is empty afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


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
def test_how_a_process_ended_is_said(code: str, says: str, temporary: Path) -> None:
    with Supervision("test") as processes:
        processes.start(python(f"import os, signal; {code}"))
        assert ends(processes, 1)[0].startswith(says)
        assert processes.folder.is_dir()
    assert list(temporary.iterdir()) == []


def test_each_process_has_its_environment_and_one_folder_for_temporary_files(temporary: Path) -> None:
    code = "import os, tempfile; open(f'{tempfile.gettempdir()}/../{os.environ[\"NAME\"]}', 'w')"
    with Supervision("test") as processes:
        for name in ("first", "second"):
            processes.start(python(code), {"NAME": name})
        assert ends(processes, 2) == ["exited with code 0"] * 2
        assert {path.name for path in processes.folder.iterdir()} >= {"first", "second", "tmp"}
        assert processes.folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_ended_takes_all_with_it(number: signal.Signals, temporary: Path) -> None:
    mark = f"3600.{os.getpid()}{time.monotonic_ns()}"
    left = f"import subprocess; subprocess.Popen(['sleep', '{mark}'], start_new_session=True).wait()"
    with Supervision("test") as processes:
        processes.start(python(left))
        limit = time.monotonic() + HANGING
        while len(marked(mark)) < 3:  # the supervisor, which has the command as arguments, among them
            assert time.monotonic() < limit
            time.sleep(0.01)
        processes._supervisors[0].send_signal(number)
        assert ends(processes, 1) == ["was ended from outside, with the process that supervises it"]
    while marked(mark):
        assert time.monotonic() < limit
    assert list(temporary.iterdir()) == []


def test_a_supervisor_that_was_stopped_is_not_waited_for(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "STUCK", 0.1)
    with Supervision("test") as processes:
        processes.start(SLEEPS)
        wait_for_folder(processes)
        processes._supervisors[0].send_signal(signal.SIGSTOP)
    assert processes._supervisors[0].returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []


def test_a_fork_of_the_parent_does_not_keep_it_alive(tmp_path: Path) -> None:
    mark = f"3600.{os.getpid()}{time.monotonic_ns()}"
    code = f"""
import os, time
from regard.support.supervision import Supervision
with Supervision("test") as processes:
    processes.start(["sleep", "{mark}"])
    while not (processes.folder / "tmp").is_dir():
        time.sleep(0.01)
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("ready", flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    fork = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[-1])
    parent.kill()
    parent.wait()
    limit = time.monotonic() + HANGING
    try:
        while any(command.startswith("sleep") for command in marked(mark).values()) or any(
            tmp_path.iterdir()
        ):
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        os.kill(fork, signal.SIGKILL)
        parent.stdout.close()
