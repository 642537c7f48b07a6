"""Forks of this process, each of which runs a test suite once: what a test does to its process ends with it.

PyTorch and pytest are imported once, before the first fork.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.checker.errors import CheckError, error_line
from regard.mutants.one_run import run_suite

INTERVAL = 0.02  # seconds between two looks at the forks
TOO_SLOW = "is too slow"  # the end of a run that is over its time


def run_forks(
    runs: list[dict[str, Any]],
    folder: Path,
    *,
    jobs: int,
    limit: float,
    tell: Callable[[int, dict[str, Any]], None] = lambda index, result: None,
) -> list[dict[str, Any]]:
    """Do some runs (see `one_run.run_suite`), each in a fork of its own.

    Arguments:
        runs: the arguments of each.
        folder: where each may write, in a folder of its own; it is made.
        jobs: how many forks run at a time.
        limit: seconds that each may take.
        tell: called with the number of a run and its result as soon as that is there.

    Returns for each its "report", an "error", or how it came to an "end" without either.
    """
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    waiting = list(enumerate(runs))
    running: dict[int, tuple[Any, float]] = {}  # by the number of a run: its fork, and when its time is over
    results: dict[int, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            index, fields = waiting.pop(0)
            process = context.Process(target=_run, args=(fields | {"folder": str(folder / str(index))},))
            process.start()
            running[index] = process, time.monotonic() + limit
        time.sleep(INTERVAL)
        for index, (process, end) in list(running.items()):
            if process.is_alive() and time.monotonic() < end:
                continue
            code = process.exitcode
            _end(process)
            del running[index]
            how = TOO_SLOW if code is None else "exits" if code >= 0 else f"crashes with signal {-code}"
            results[index] = _read(folder / str(index) / "result") or {"end": how}
            tell(index, results[index])
    return [results[index] for index in range(len(runs))]


def _run(fields: dict[str, Any]) -> None:
    """Do a run in this fork, and write its result."""
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


def _end(process: Any) -> None:
    """End a fork, if it has not ended yet, with what it has started."""
    with contextlib.suppress(OSError):  # it has not made its group yet, or the group is gone
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return result
