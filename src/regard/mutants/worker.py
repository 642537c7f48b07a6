"""The process that runs a test suite on mutants: `python -m regard.mutants.worker REQUEST`.

A request holds runs, each of which is done in a fork of this process: PyTorch is imported once, and what a
test does to its process is gone with the fork. `suite_runs` starts this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.checker.errors import CheckError
from regard.checker.worker import error_line, run_request
from regard.mutants.one_run import run_suite

WARM_UP = """import torch


def test_warm_up():
    torch.testing.assert_close(torch.zeros(1), torch.zeros(1))
"""
INTERVAL = 0.02  # seconds between two looks at the forks


def run_all(request: dict[str, Any], write_line: Callable[..., None]) -> int:
    """Do the runs of a request, some at a time; each result is written as a line when it is there."""
    sys.dont_write_bytecode = True
    # Folders for what the tests write, inside the one that is removed with this process.
    folder = Path(tempfile.mkdtemp())
    _warm_up(folder)
    waiting = list(enumerate(request["runs"]))
    running: dict[int, tuple[int, float]] = {}  # by process: the number of the run, and when its time is over
    write_line(phase="testing")
    while waiting or running:
        while waiting and len(running) < request["jobs"]:
            index, fields = waiting.pop(0)
            fields |= {"spec": request["spec"], "folder": str(folder / str(index))}
            running[_fork(fields)] = index, time.monotonic() + request["limit"]
        time.sleep(INTERVAL)
        for process, (index, end) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and time.monotonic() < end:
                continue
            if not ended:
                _kill(process)
            del running[process]
            result = _read(folder / str(index) / "result")
            how = "exits" if os.WIFEXITED(status) else f"crashes with signal {os.WTERMSIG(status)}"
            result = result or {"end": how if ended else "is too slow"}
            write_line(done=index, result=result)
    return len(request["runs"])


def _warm_up(folder: Path) -> None:
    """Run a test of one line, so that pytest, its plugins and what comparisons need are imported once."""
    test = folder / "test_warm_up.py"
    test.write_text(WARM_UP, encoding="utf-8")
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull, str(test)])


def _fork(fields: dict[str, Any]) -> int:
    """Start a run in a fork of this process; return its number."""
    if process := os.fork():
        return process
    # A group of its own, so that what a test starts ends with it.
    os.setpgid(0, 0)
    folder = Path(fields["folder"])
    folder.mkdir()
    try:
        result: dict[str, Any] = {"report": run_suite(fields)}
    except CheckError as error:
        result = {"error": str(error)}
    # SystemExit by `exit()` is no subclass of Exception.
    except BaseException as error:
        result = {"error": f"the suite could not be run: {error_line(error)}"}
    (folder / "part").write_text(json.dumps(result), encoding="utf-8")
    os.replace(folder / "part", folder / "result")  # so that it is there as a whole or not at all
    os._exit(0)


def _kill(process: int) -> None:
    """End a fork, with what it has started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except OSError:  # it has not made its group yet, or is gone
            continue
    os.waitpid(process, 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return result


if __name__ == "__main__":
    run_request(run_all)
