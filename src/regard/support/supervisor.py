"""A process that runs another one and ends it: `python supervisor.py PARENT FOLDER NAME COMMAND…`.

`supervision` starts it. Once it gets a signal, or its parent is gone, however that ended, the process that it
started is killed, with all that this one has started, and the folder is removed. Until then, the file NAME in
the folder says how the process ended. The supervisor does nothing else: code that holds the GIL, blocks in C
or ignores signals cannot keep it from that. It imports nothing but small modules of Python's own.

On Linux it adopts orphans (PR_SET_CHILD_SUBREAPER), and so finds processes that have left their session or
their parent. Elsewhere it finds those that are still in the process group of what it started.
"""

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import time

INTERVAL = 0.01  # seconds between two looks
PATIENCE = 10.0  # seconds for killed processes to be gone; one that waits for a dead disk never is
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """Start the process, wait for the end, and leave nothing behind."""
    ends: list[int] = []  # the signals that ask for the end
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: ends.append(number))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, there would be no exit statuses
    call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent, folder, name, *command = sys.argv[1:]
    started: set[int] = set()
    try:
        # 0o700: other users of the machine share the folder for temporary files.
        os.makedirs(folder, 0o700, exist_ok=True)
        os.makedirs(os.path.join(folder, "tmp"), exist_ok=True)
        report = os.path.join(folder, name)
        try:
            process = start(command)
            started.add(process.pid)
        except OSError as error:
            write(report, f"could not be started: {error}")
        # The parent's number changes when it dies, however it dies; no signal would tell that.
        while not ends and os.getppid() == int(parent):
            for child, status in reap():
                if child in started:
                    started.remove(child)
                    write(report, str(os.waitstatus_to_exitcode(status)))
            time.sleep(INTERVAL)
    finally:
        kill_descendants(started)
        remove(folder)
    # os._exit: handlers of exit and other threads have no say in the end.
    os._exit(0)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which is killed when this one is."""
    supervisor = os.getpid()

    # PDEATHSIG only covers a parent that dies after the call, hence the look at the parent below.
    def end_with_supervisor() -> None:
        call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it was killed before
            os._exit(1)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_supervisor,
    )


def call_prctl(option: int, value: int) -> None:
    """Set an option of this process. Only Linux has them."""
    if sys.platform == "linux":
        # A Python without ctypes, or a C library without prctl: orphans are then found by their process
        # group.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def write(path: str, text: str) -> None:
    """Write a file of one line; its end says that all of it is there."""
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


def reap() -> list[tuple[int, int]]:
    """Return the number and the status of every child that has ended, adopted ones as well."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def kill_descendants(started: set[int]) -> None:
    """Kill all that descends from this process, until it has no children any more.

    A process group is killed at once, so that none of its processes can start another in between.
    """
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for number in started | descendants():
            with contextlib.suppress(OSError):
                # killpg on our own group would kill the supervisor before it has removed the folder.
                if os.getpgid(number) != os.getpgrp():
                    os.killpg(os.getpgid(number), signal.SIGKILL)
                # A process may be in our own group, or have changed its group since the line above.
                os.kill(number, signal.SIGKILL)
        try:
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                started.discard(ended)
        except ChildProcessError:
            return
        # Shorter than between two looks: someone waits for the end.
        time.sleep(INTERVAL / 10)


def descendants() -> set[int]:
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
    return set(found[1:])


def remove(folder: str) -> None:
    """Remove a folder, also where someone has taken away the right to."""
    shutil.rmtree(folder, ignore_errors=True)
    # Code under test may have set folders to read-only, on purpose or not; rmtree cannot empty them then.
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
        for path, folders, _ in os.walk(folder):
            for inner in (os.path.join(path, name) for name in folders):
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
