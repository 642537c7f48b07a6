"""Checking code in a process of its own, with limits on time and memory.

A hang, a crash, an `exit()`, a training loop at module level or an allocation of gigabytes ends in a clear
error, not in a dead checker. The report comes back as JSON in a file; nothing is unpickled, and the code's
own output cannot be taken for the report. Nothing is left running, however this process ends (`supervision`).
This contains accidents; it does not stop malicious code.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.checker.errors import CheckError
from regard.checker.reports.report import Report
from regard.checker.subject.locate import split
from regard.supervision import Supervision

TIMEOUT, MEMORY = 60.0, 4.0  # seconds, gigabytes
STARTING = 300.0  # seconds for Python and PyTorch to start, on a busy machine
INTERVAL = 0.02  # seconds between two looks at the result


def check_in_process(
    spec: str, options: dict[str, Any], *, timeout: float = TIMEOUT, memory: float = MEMORY
) -> Report:
    """Run `regard.check` in a process of its own.

    Arguments:
        spec: `path/to/file.py:Name` or `package.module:Name`.
        options: keyword arguments of `check`.
        timeout: seconds that the code may run.
        memory: gigabytes that it may allocate.

    Returns the report; raises `CheckError` if the process ended without one.
    """
    place, _ = split(spec)
    request = {"spec": spec, "options": options}
    last = run_in_process("regard.checker.worker", request, place, spec, timeout=timeout, memory=memory)
    return Report.from_dict(last["report"])


def run_in_process(
    module: str,
    request: dict[str, Any],
    place: str,
    spec: str,
    *,
    timeout: float = TIMEOUT,
    memory: float = MEMORY,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a worker module on a request, with limits; return the last line of JSON that it wrote.

    `place` is the author's file and `spec` what is run of it, for messages. `tell` is called with each line
    that the worker writes on the way. Raises `CheckError` if the worker wrote an error or no `"report"`.
    """
    if not timeout > 0 or not memory > 0:
        raise CheckError(f"expected a timeout and a memory above 0, got {timeout} seconds and {memory} GB")
    with Supervision("check") as processes:
        result = processes.folder / "result"
        request = request | {"memory": memory, "result": str(result)}
        processes.start([worker_command(module, request)], [{}])
        lines, out_of_time = _wait(processes, result, timeout, tell)
    last = lines[-1] if lines else {}
    if "report" in last:
        return last
    if "error" in last:
        raise CheckError(_add_memory_hint(str(last["error"]), memory))
    phase = last.get("phase", "starting")
    if out_of_time:
        raise CheckError(_describe_timeout(phase, place, spec, timeout))
    raise CheckError(_describe_end(processes, phase, place, spec, memory))


def worker_command(module: str, request: dict[str, Any]) -> list[str]:
    """Return the command that runs a module on a request. No file of the current folder hides a module."""
    return [sys.executable, "-P", "-m", module, json.dumps(request)]


def _wait(
    processes: Supervision, result: Path, timeout: float, tell: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines that the worker wrote, once it has finished or ended, and whether its time is over."""
    end = time.monotonic() + STARTING
    lines: list[dict[str, Any]] = []
    while True:
        processes.wait(INTERVAL)
        ended = processes.ended or 0 in processes.statuses
        before, lines = lines, read_lines(result)
        if lines and not before:  # the clock starts when the author's code does
            end = time.monotonic() + timeout
        for line in lines[len(before) :]:
            tell(line)
        if ended or (lines and ("report" in lines[-1] or "error" in lines[-1])):
            return lines, False
        if time.monotonic() > end:
            return lines, True


def read_lines(result: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON that a process has written to a file so far."""
    try:
        lines = result.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
        return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return []
    except ValueError:
        raise CheckError("the code has written into the file of its own result: no verdict") from None


def _describe_timeout(phase: str, place: str, spec: str, timeout: float) -> str:
    """Explain that the time was over before there was a report."""
    if phase == "starting":
        return f"Python and PyTorch did not start within {STARTING:g} s: is the machine busy?"
    if phase == "importing":
        return (
            f"{place} was still being imported after {timeout:g} s: put code that is only for a script "
            '(a training loop?) under if __name__ == "__main__":, or allow more time with --timeout'
        )
    more = f"--timeout {timeout * 4:g}"
    return f"{spec} did not finish within {timeout:g} s: it hangs, or needs more time: {more}"


def _describe_end(processes: Supervision, phase: str, place: str, spec: str, memory: float) -> str:
    """Explain why the process ended without a report."""
    doing = {"starting": "Python and PyTorch were starting", "importing": f"{place} was being imported"}
    end = f"the process {processes.describe_end(0)} while {doing.get(phase, f'{spec} was being checked')}"
    if end.startswith("the process crashed with SIGABRT"):
        return f"{end} (out of memory? the limit is {memory:g} GB: --memory)"
    return f"{end}: it calls os._exit or sys.exit" if processes.statuses.get(0, -1) >= 0 else end


def _add_memory_hint(message: str, memory: float) -> str:
    memory_words = (
        "can't allocate memory",
        "MemoryError",
        "not enough memory",
        "std::bad_alloc",
        "Cannot allocate",
    )
    if any(word in message for word in memory_words):
        return f"{message} (the limit is {memory:g} GB: --memory)"
    return message
