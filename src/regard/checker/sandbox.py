"""Somebody else's code in a process of its own, with a limit on time and on memory.

A hang, a crash, an `exit()`, a training loop at module level or gigabytes of memory end in a clear answer,
not in a dead checker. The report comes back as JSON in a file; nothing is unpickled, and nothing of the
code's own output is taken for the report. This limits accidents; it is no wall against malice.
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

from regard.checker.report import Report
from regard.checker.subject.construct import CheckError
from regard.checker.subject.locate import split

TIMEOUT, MEMORY = 60.0, 4.0  # seconds, gigabytes
STARTING = 300.0  # seconds for Python and PyTorch to start, on a busy machine


def check_apart(
    spec: str, options: dict[str, Any], *, timeout: float = TIMEOUT, memory: float = MEMORY
) -> Report:
    """`regard.check` of `file.py:Name` in a process of its own; CheckError if no report came back."""
    place, _ = split(spec)
    if not timeout > 0 or not memory > 0:
        raise CheckError(f"expected a timeout and a memory above 0, got {timeout} seconds and {memory} GB")
    with tempfile.TemporaryDirectory(prefix="regard-check-") as folder:
        result = Path(folder) / "result"
        request = json.dumps({"spec": spec, "options": options, "memory": memory, "result": str(result)})
        process = subprocess.Popen(
            [sys.executable, "-m", "regard.checker.worker", request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that whatever it starts can be ended with it
        )
        try:
            said = _wait(process, result, timeout)
        finally:
            _end(process)
    last = said[-1] if said else {}
    if "report" in last:
        return Report.from_dict(last["report"])
    if "cannot" in last:
        raise CheckError(_kinder(str(last["cannot"]), memory))
    phase = last.get("phase", "starting")
    raise CheckError(_what_happened(process.returncode, phase, place, spec, timeout, memory))


def _wait(process: subprocess.Popen[bytes], result: Path, timeout: float) -> list[dict[str, Any]]:
    """What the worker said, once it has said all, has ended, or has run out of time."""
    end = time.monotonic() + STARTING
    said: list[dict[str, Any]] = []
    while True:
        ended = process.poll() is not None
        before, said = said, _read(result)
        if said and not before:  # the clock starts when the author's code does
            end = time.monotonic() + timeout
        if ended or (said and ("report" in said[-1] or "cannot" in said[-1])) or time.monotonic() > end:
            return said
        time.sleep(0.02)


def _read(result: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError):
        lines = result.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
        return [json.loads(line) for line in lines]
    return []


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def _what_happened(code: int, phase: str, place: str, spec: str, timeout: float, memory: float) -> str:
    doing = f"{place} was being imported" if phase == "importing" else f"{spec} was being checked"
    if code == -signal.SIGKILL and phase == "importing":
        return (
            f"{place} was still being imported after {timeout:g} s: put what runs (a training loop?) under "
            'if __name__ == "__main__":, or allow more with --timeout'
        )
    if code == -signal.SIGKILL:
        return (
            f"{spec} did not finish within {timeout:g} s: it hangs, or needs more: --timeout {timeout * 4:g}"
        )
    if code < 0:
        name = signal.Signals(-code).name
        more = f" (out of memory? the limit is {memory:g} GB: --memory)" if name == "SIGABRT" else ""
        return f"the process crashed with {name} while {doing}{more}"
    return f"the process ended itself with code {code} while {doing}: it calls os._exit or sys.exit"


def _kinder(message: str, memory: float) -> str:
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
