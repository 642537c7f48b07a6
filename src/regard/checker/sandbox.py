"""Checking code in a process of its own, with limits on time and memory.

A hang, a crash, an `exit()`, a training loop at module level or an allocation of gigabytes ends in a clear
error, not in a dead checker. The report comes back as JSON in a file; nothing is unpickled, and the code's
own output cannot be taken for the report. This contains accidents; it does not stop malicious code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from regard.checker.errors import CheckError
from regard.checker.report import Report
from regard.checker.subject.locate import split

TIMEOUT, MEMORY = 60.0, 4.0  # seconds, gigabytes
STARTING = 300.0  # seconds for Python and PyTorch to start, on a busy machine


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
    if not timeout > 0 or not memory > 0:
        raise CheckError(f"expected a timeout and a memory above 0, got {timeout} seconds and {memory} GB")
    with tempfile.TemporaryDirectory(prefix="regard-check-") as folder:
        result = Path(folder) / "result"
        request = json.dumps(
            {"spec": spec, "options": options, "memory": memory, "result": str(result), "parent": os.getpid()}
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "regard.checker.worker", request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that the processes it starts can be ended with it
        )
        try:
            lines = _wait(process, result, timeout)
        finally:
            end_process(process)
    last = lines[-1] if lines else {}
    if "report" in last:
        return Report.from_dict(last["report"])
    if "error" in last:
        raise CheckError(_add_memory_hint(str(last["error"]), memory))
    phase = last.get("phase", "starting")
    raise CheckError(_describe_exit(process.returncode, phase, place, spec, timeout, memory))


def _wait(process: subprocess.Popen[bytes], result: Path, timeout: float) -> list[dict[str, Any]]:
    """Return the lines that the worker wrote, once it has finished, has ended, or has run out of time."""
    end = time.monotonic() + STARTING
    lines: list[dict[str, Any]] = []
    while True:
        ended = process.poll() is not None
        before, lines = lines, _read(result)
        if lines and not before:  # the clock starts when the author's code does
            end = time.monotonic() + timeout
        if ended or (lines and ("report" in lines[-1] or "error" in lines[-1])) or time.monotonic() > end:
            return lines
        time.sleep(0.02)


def _read(result: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError):
        lines = result.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
        return [json.loads(line) for line in lines]
    return []


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def _describe_exit(code: int, phase: str, place: str, spec: str, timeout: float, memory: float) -> str:
    """Explain why the process ended without a report."""
    doing = f"{place} was being imported" if phase == "importing" else f"{spec} was being checked"
    if code == -signal.SIGKILL and phase == "importing":
        return (
            f"{place} was still being imported after {timeout:g} s: put code that is only for a script "
            '(a training loop?) under if __name__ == "__main__":, or allow more time with --timeout'
        )
    if code == -signal.SIGKILL:
        return (
            f"{spec} did not finish within {timeout:g} s: it hangs, or needs more time: "
            f"--timeout {timeout * 4:g}"
        )
    if code < 0:
        name = signal.Signals(-code).name
        hint = f" (out of memory? the limit is {memory:g} GB: --memory)" if name == "SIGABRT" else ""
        return f"the process crashed with {name} while {doing}{hint}"
    return f"the process exited with code {code} while {doing}: it calls os._exit or sys.exit"


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
