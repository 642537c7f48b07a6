"""Processes that end with this one, and a folder that goes with them.

`supervisor` is a process of its own, which starts them, ends them and removes the folder: when it is told to,
and also when this process is killed. This file starts that process and talks to it. It does not know what the
processes do.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from regard.supervisor import remove

SUPERVISOR = Path(__file__).with_name("supervisor.py")
STUCK = 30.0  # seconds after which a supervisor is not waited for any more: someone has stopped it
PATIENCE = 5.0  # seconds for killed processes to be gone
SENT = {
    "SIGKILL": "was killed with {name} (from outside, or by the kernel when memory ran out)",
    "SIGTERM": "was ended with {name} (from outside, or by itself)",
    "SIGINT": "was ended with {name} (from outside, or by itself)",
    "SIGHUP": "was ended with {name} (from outside, or by itself)",
}
"""How a process ended, by the signal that ended it. Any other is a crash."""


class Supervision:
    """Processes under a supervisor: `with Supervision("check") as processes: processes.start(…)`.

    At the end of the block they are killed, with all that they have started, and `folder` is removed.

    Arguments:
        name: what they are for; a part of the folder's name.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.gettempdir()).absolute() / f"regard-{name}-{secrets.token_hex(8)}"
        self.statuses: dict[int, int] = {}  # by index, of those that have ended: exit code, or minus signal
        self.ended = False  # whether the supervisor has ended
        self._numbers: list[int] = []
        self._text = b""
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self, commands: list[list[str]], environments: list[dict[str, str]]) -> None:
        """Start the commands, each with additions to the environment; temporary files go into `folder`."""
        processes = [
            {"command": command, "environment": environment}
            for command, environment in zip(commands, environments, strict=True)
        ]
        request = {"folder": str(self.folder), "parent": os.getpid(), "processes": processes}
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process alone
        )
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed: `wait` sees that
            self._supervisor.stdin.write(json.dumps(request).encode() + b"\n")
            self._supervisor.stdin.flush()

    def wait(self, seconds: float) -> None:
        """Wait until there is news of the processes, at most so long."""
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        if self.ended or not select.select([self._supervisor.stdout], [], [], seconds)[0]:
            return
        text = os.read(self._supervisor.stdout.fileno(), 1 << 16)
        self.ended = not text
        *lines, self._text = (self._text + text).split(b"\n")
        for line in map(json.loads, lines):
            if "error" in line:
                raise ChildProcessError(f"a process could not be started: {line['error']}")
            if "status" in line:
                self.statuses[line["index"]] = line["status"]
            else:
                self._numbers.append(line["number"])

    def close(self) -> None:
        """End all processes and remove the folder."""
        if self._supervisor is None:
            return
        try:
            self._supervisor.communicate(timeout=STUCK)  # closes its standard input and waits for it
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.communicate()
        if self._supervisor.returncode:
            self._clear()

    def _clear(self) -> None:
        """Clear up after a supervisor that was killed: what it started is known by its temporary folder."""
        for number in self._numbers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)
        limit = time.monotonic() + PATIENCE
        while self._kill_marked() and time.monotonic() < limit:
            time.sleep(0.01)
        remove(str(self.folder))

    def _kill_marked(self) -> int:
        """Kill the processes that have the folder in their environment; return how many there were."""
        count = 0
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if bytes(self.folder) in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    count += 1
        return count

    def describe_end(self, index: int) -> str:
        """Return how a process ended, as the rest of a sentence: "crashed with SIGSEGV"."""
        if index not in self.statuses:
            return "was ended from outside, with the process that supervises it"
        status = self.statuses[index]
        if status >= 0:
            return f"exited with code {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal
            name = f"signal {-status}"
        return SENT.get(name, "crashed with {name}").format(name=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
