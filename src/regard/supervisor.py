"""A process that ends others: `python supervisor.py`, which `supervision` starts and talks to.

The first line of standard input says what to start, and in which folder. Once standard input is closed, which
also happens when the one at its other end is killed, every process that was started is killed, with all that
those have started, and the folder is removed. This process does nothing else: code that holds the GIL, blocks
in C or ignores signals cannot keep it from that. It imports nothing but small modules of Python's own.

On Linux it adopts orphans (PR_SET_CHILD_SUBREAPER), and so finds processes that have left their session or
their parent. Elsewhere it finds those that are still in the process group of what it started.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

INTERVAL = 0.01  # seconds between two looks
PATIENCE = 10.0  # seconds for killed processes to be gone; one that waits for a dead disk never is
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """Start the processes of the request, wait for the end, and leave nothing behind."""
    ends: list[object] = []  # what asks for the end
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: ends.append(number))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, there would be no exit statuses
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the one who was writing it is gone
    request = json.loads(line)
    call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    indices: dict[int, int] = {}
    try:
        start(request, indices)
        threading.Thread(target=lambda: ends.append(sys.stdin.buffer.read()), daemon=True).start()
        while not ends and os.getppid() == request["parent"]:
            report_exits(indices)
            time.sleep(INTERVAL)
    except OSError as error:
        say(error=str(error))
    finally:
        kill_descendants(indices)
        remove(request["folder"])
    os._exit(0)  # without waiting for the thread


def start(request: dict[str, Any], indices: dict[int, int]) -> None:
    """Make the folder, start every process in a session of its own, and add their numbers to `indices`."""
    temporary, supervisor = os.path.join(request["folder"], "tmp"), os.getpid()
    os.mkdir(request["folder"], 0o700)
    os.mkdir(temporary)
    for index, process in enumerate(request["processes"]):
        started = subprocess.Popen(
            process["command"],
            env=os.environ | process["environment"] | {"TMPDIR": temporary},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: end_with_supervisor(supervisor),
        )
        indices[started.pid] = index
        say(index=index, number=started.pid)
        started.returncode = 0  # else it reaps its process when it is forgotten, unreported


def end_with_supervisor(supervisor: int) -> None:
    """Have this process killed when the supervisor is. Called in a new process, before its program."""
    call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it was killed before
        os._exit(1)


def call_prctl(option: int, value: int) -> None:
    """Set an option of this process. Only Linux has them."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def say(**fields: object) -> None:
    """Write a line of JSON to the one who started this process, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def report_exits(indices: dict[int, int]) -> None:
    """Say which processes have ended and how; adopted ones are only reaped."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            number, status = ended
            if number in indices:
                say(index=indices.pop(number), status=os.waitstatus_to_exitcode(status))


def kill_descendants(indices: dict[int, int]) -> None:
    """Kill all that descends from this process, until it has no children any more.

    A process group is killed at once, so that none of its processes can start another in between.
    """
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for number in {*indices, *descendants()}:
            with contextlib.suppress(OSError):
                if os.getpgid(number) != os.getpgrp():
                    os.killpg(os.getpgid(number), signal.SIGKILL)
                os.kill(number, signal.SIGKILL)
        try:
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                indices.pop(ended, None)
        except ChildProcessError:
            return
        time.sleep(INTERVAL / 10)


def descendants() -> list[int]:
    """Return the numbers of all processes that descend from this one, as /proc says, where there is one."""
    children: dict[int, list[int]] = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            number, _, rest = file.read().partition(" ")
            parent = int(rest.rpartition(")")[2].split()[1])  # after the name, which may hold anything
            children.setdefault(parent, []).append(int(number))
    found = [os.getpid()]
    for process in found:  # grows while it is read
        found += children.get(process, [])
    return found[1:]


def remove(folder: str) -> None:
    """Remove a folder, also where someone has taken away the right to."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
        for path, folders, _ in os.walk(folder):
            for inner in (os.path.join(path, name) for name in folders):
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
