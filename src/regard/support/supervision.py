"""Processes that end with this one, and a folder that goes with them.

Each of them is run by a `supervisor`, a process of its own, which kills it and removes the folder: when it is
told to, and also when this process is killed. This file does not know what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from regard.support.supervisor import remove

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
    """Processes under supervisors: `with Supervision("check") as processes: processes.start(command)`.

    At the end of the block they are killed, with all that they have started, and `folder` is removed.

    Arguments:
        name: what they are for; a part of the folder's name.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.gettempdir()).absolute() / f"regard-{name}-{secrets.token_hex(8)}"
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Start a command with additions to the environment; its temporary files go into `folder`."""
        name = f"status-{len(self._supervisors)}"
        # -I -S: neither the user's site-packages nor PYTHON* variables may slow it down or break it.
        supervisor = [sys.executable, "-I", "-S", str(SUPERVISOR), str(os.getpid()), str(self.folder), name]
        self._supervisors.append(
            subprocess.Popen(
                supervisor + command,
                # The folder's name in the environment also marks what the process starts, for `_kill_marked`.
                env=os.environ | (environment or {}) | {"TMPDIR": str(self.folder / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        )

    def describe_end(self, index: int) -> str:
        """Return how a process ended, as the rest of a sentence: "crashed with SIGSEGV"; "" while it runs."""
        has_supervisor = self._supervisors[index].poll() is None  # asked before its file is read
        with contextlib.suppress(OSError):
            # The line end says that the supervisor has written all of it.
            if (text := (self.folder / f"status-{index}").read_text("utf-8")).endswith("\n"):
                return _describe_status(text.strip())
        return "" if has_supervisor else "was ended from outside, with the process that supervises it"

    def close(self) -> None:
        """End all processes and remove the folder."""
        for supervisor in self._supervisors:
            # All are told before the first is waited for, so that they end at the same time.
            supervisor.terminate()
        for supervisor in self._supervisors:
            try:
                supervisor.wait(STUCK)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        # A supervisor that ends as it should exits with 0, after it has cleared up itself.
        if any(supervisor.returncode for supervisor in self._supervisors):
            self._clear()

    def _clear(self) -> None:
        """Clear up after a supervisor that was killed: what it started is known by its temporary folder."""
        limit = time.monotonic() + PATIENCE
        while self._kill_marked() and time.monotonic() < limit:
            time.sleep(0.01)
        remove(str(self.folder))

    def _kill_marked(self) -> int:
        """Kill the processes that have the folder in their environment; return how many there were."""
        count = 0
        # Linux alone has /proc/*/environ; elsewhere the glob is empty, and orphans of a killed supervisor
        # stay.
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if bytes(self.folder) in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    count += 1
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _describe_status(text: str) -> str:
    """Return what a supervisor's report says: an exit code, minus a signal, or why nothing was started."""
    if not text.lstrip("-").isdigit():
        return text
    if (status := int(text)) >= 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    return SENT.get(name, "crashed with {name}").format(name=name)
