"""Processes that end with this one, and a folder that goes with them.

Each runs in a session of its own, which is killed at the end of the block, whatever ended it; where this
process is killed itself, the kernel kills them (Linux). This file does not know what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

PR_SET_PDEATHSIG = 1
SENT = {
    "SIGKILL": "was killed with {name} (from outside, or by the kernel when memory ran out)",
    "SIGTERM": "was ended with {name} (from outside, or by itself)",
    "SIGINT": "was ended with {name} (from outside, or by itself)",
    "SIGHUP": "was ended with {name} (from outside, or by itself)",
}
"""How a process ended, by the signal that ended it. Any other is a crash."""


class Supervision:
    """Processes that run modules: `with Supervision("check") as processes: processes.start(module, text)`.

    At the end of the block they are killed, with all that they have started and that has not left their
    session, and `folder` is removed. `name` is what they are for, a part of the folder's name.
    """

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"regard-{name}-")).absolute()
        (self.folder / "tmp").mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, argument: str, environment: dict[str, str] | None = None) -> None:
        """Run a module with one argument; its temporary files go into `folder`."""
        # With -P no file of the current folder hides a module.
        command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), module, argument]
        self._processes.append(
            subprocess.Popen(
                command,
                env=os.environ | (environment or {}) | {"TMPDIR": str(self.folder / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        )

    def describe_end(self, index: int) -> str:
        """Return how a process ended, as the rest of a sentence: "crashed with SIGSEGV"; "" while it runs."""
        status = self._processes[index].poll()
        if status is None:
            return ""
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
        for process in self._processes:
            with contextlib.suppress(OSError):  # nothing of its session is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    """Run a module in a process that is killed when the one that started it is gone."""
    parent, module, *_ = sys.argv[1:]
    if sys.platform == "linux":
        # A Python without ctypes, or a C library without prctl.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(parent):  # else it was killed before
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
