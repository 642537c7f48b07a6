"""Processes under supervision: how they ended is known, and nothing of them is left, whoever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from regard.support.supervision import Supervision
from tests.patience import HANGING


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, with a module `program` that runs its argument."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text("import os, signal, sys, time\nexec(sys.argv[1])\n")
    (tmp_path / "temporary").mkdir()
    source = [str(tmp_path / "code"), *(path for path in sys.path if path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(source))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def ends(processes: Supervision, count: int) -> list[str]:
    """Wait until the first so many processes have ended, and return how."""
    limit = time.monotonic() + HANGING
    while not all(said := [processes.describe_end(index) for index in range(count)]):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return said


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
        processes.start("program", code)
        assert ends(processes, 1)[0].startswith(says)
        assert processes.folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_each_process_has_its_environment_and_one_folder_for_temporary_files(temporary: Path) -> None:
    code = "import tempfile; open(f'{tempfile.gettempdir()}/../{os.environ[\"NAME\"]}', 'w')"
    with Supervision("test") as processes:
        for name in ("first", "second"):
            processes.start("program", code, {"NAME": name})
        assert ends(processes, 2) == ["exited with code 0"] * 2
        assert {path.name for path in processes.folder.iterdir()} >= {"first", "second", "tmp"}


CHILD = "import subprocess; child = subprocess.Popen(['sleep', '3600']); "
WRITE = "open('{file}', 'w').write(f'{{os.getpid()}} {{child.pid}} '); child.wait()"


def test_the_end_of_the_block_ends_what_was_started(temporary: Path) -> None:
    """In a thread, too; `global_state` compares the handlers and the threads after every test."""
    file = temporary.parent / "pids"

    def run() -> None:
        with Supervision("test") as processes:
            processes.start("program", CHILD + WRITE.format(file=file))
            limit = time.monotonic() + HANGING
            while not file.exists() or not file.read_text().endswith(" "):
                assert time.monotonic() < limit
                time.sleep(0.01)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    limit = time.monotonic() + HANGING
    while any(map(is_alive, map(int, file.read_text().split()))):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_when_its_parent_is_killed(temporary: Path) -> None:
    code = """
import sys, time
from regard.support.supervision import Supervision
with Supervision("test") as processes:
    processes.start("program", "open(sys.argv[0] + '.pid', 'w').write(str(os.getpid())); time.sleep(3600)")
    time.sleep(3600)
"""
    file = temporary.parent / "code" / "program.py.pid"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    limit = time.monotonic() + HANGING
    while not file.exists() or not file.read_text():
        assert time.monotonic() < limit
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    while is_alive(int(file.read_text())):
        assert time.monotonic() < limit
        time.sleep(0.01)
