"""A lock on what one process at a time may write: the folder of a run, the file of a survey.

The lock is `flock` on a small file, which the system releases when the process ends, however it ends. The
file names the owner, for the message to whoever comes second; after `kill -9` it stays, and locks nothing.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
import time
import warnings
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.support.files import write_error

# Windows has no fcntl; `_flock` then warns and locks nothing.
if sys.platform != "win32":
    import fcntl

SECONDS_WITHOUT_OWNER = 1.0
"""For so long a lock is tried again if it names no living owner. The owner may not have written its name yet;
or it was killed, and a child that it had just forked has not run yet, to let go of the lock."""
MAX_COMMAND = 200  # characters of the owner's command that are shown
OWNER_FIELDS = {"pid": int, "host": str, "since": str, "command": str}
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # from a file system without flock


class InUseError(OSError):
    """Another run writes to the same place; the message says which one."""


class LostLockError(OSError):
    """The file of a lock was removed, so that another run may write to the same place by now."""


class FileLock:
    """The lock `path` on `place`, a folder or a file, which messages name as the argument `name`.

    Creating the object takes the lock, or raises an `InUseError` that says who has it. It is held until
    `release`, the end of a `with` block, or the end of the process, unless someone removes its file, which
    `check` notices. A process that is forked meanwhile does not hold it. Where there is no `flock`, a warning
    says so and nothing is locked.
    """

    def __init__(self, path: Path, name: str, place: Path) -> None:
        self.name, self.place = name, place
        self._handle = handle = _Handle(path)
        # finalize also runs at the end of the interpreter, where `__del__` of objects in cycles may not.
        self.release = weakref.finalize(self, handle.release)
        try:
            deadline = time.monotonic() + SECONDS_WITHOUT_OWNER
            while not handle.take():
                owner = _read_owner(path)
                if owner is not None or time.monotonic() > deadline:
                    raise InUseError(f"{name}: {place} {_owner_message(owner)}")
                time.sleep(0.02)
            handle.write_owner()
        # BaseException: a Ctrl-C while it waits must not leave the file behind.
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and not isinstance(error, InUseError):
                raise write_error(name, place, error) from None
            raise

    def check(self) -> None:
        """Raise a `LostLockError` if the lock is lost: its file was removed or replaced, or its folder was.

        An owner calls it before it writes, since another one may be there by now.
        """
        if not self._handle.is_held():
            raise LostLockError(
                f"{self.name}: expected {self.place} to stay with its owner, but {self._handle.path} was "
                "removed or replaced, so that another run may be there by now: this one ends, and nothing "
                "more is written"
            )

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Handle:
    """A lock file. `descriptor` is its file descriptor while this process holds the lock, else None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        _handles.add(self)

    def take(self) -> bool:
        """Lock the file; False if another process holds it."""
        while True:
            # O_NOFOLLOW (absent on Windows): a symbolic link at this name could have any file truncated by
            # `write_owner`.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                free = _flock(descriptor)
                # The owner before may have deleted the file between our open and our flock: then we hold a
                # lock on nothing.
                if free and _is_file(descriptor, self.path):
                    self.descriptor, descriptor = descriptor, -1
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            if self.descriptor is not None or not free:
                return free

    def write_owner(self) -> None:
        """Name this process in the file."""
        if self.descriptor is not None:
            # The file of an owner that was killed still holds its name, which may be longer than ours.
            os.ftruncate(self.descriptor, 0)
            os.write(self.descriptor, json.dumps(_this_process()).encode())

    def is_held(self) -> bool:
        """Whether this process holds the lock, and others would find it locked."""
        return self.descriptor is not None and _is_file(self.descriptor, self.path)

    def release(self) -> None:
        """Delete the file, unless it is another's by now, and let go of the lock."""
        with suppress(OSError):
            if self.is_held():
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file: the lock is free once every process that shares it has closed it."""
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)


def _flock(descriptor: int) -> bool:
    """Lock an open file, and return whether it was free; where that is impossible, warn and go on."""
    try:
        # Raised as an error so that Windows takes the same way as a file system without flock.
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, "not on Windows")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        reason = error.strerror
    message = f"there is no flock here ({reason}): a second run in the same place would not be noticed"
    warnings.warn(message, stacklevel=5)
    return True


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file: an owner deletes its lock file before it lets go."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    # NotADirectoryError: the folder was replaced by a file.
    except (FileNotFoundError, NotADirectoryError):
        return False


_handles: weakref.WeakSet[_Handle] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close what a forked process inherits, which would keep the lock of a killed parent."""
    for handle in list(_handles):
        handle.close()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _this_process() -> dict[str, Any]:
    """This process, as its lock file names it."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else []
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "command": shlex.join(words)[:MAX_COMMAND],
    }


def _owner_message(owner: dict[str, Any] | None) -> str:
    """Say who holds a lock and what can be done about it."""
    if owner is None:
        return "is in use by another process: wait until it ends, or choose another place"
    here = owner["host"] == socket.gethostname()
    if here and owner["pid"] == os.getpid():
        return (
            f"is in use by this process since {owner['since']}: wait until that ends, or choose another place"
        )
    where = "" if here else f" on {owner['host']}"
    message = (
        f"is in use by process {owner['pid']}{where} since {owner['since']} ({owner['command']}): "
        f"wait until it ends, stop it with `kill {owner['pid']}`{where}, or choose another place"
    )
    # The command is another user's text, read from a file: control characters would move the terminal's
    # cursor.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)


def _read_owner(path: Path) -> dict[str, Any] | None:
    """The owner that a lock file names; None if it names no process, or one that has ended."""
    # Anyone may write the file, and its owner may be writing it just now.
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(path.read_bytes())
        owner = {name: kind(stored[name]) for name, kind in OWNER_FIELDS.items()}
        # A number of a process means nothing on another host (the folder may be on NFS), so its owner counts
        # as alive.
        if owner["host"] != socket.gethostname() or _lives(owner["pid"]):
            return owner
    return None


def _lives(pid: int) -> bool:
    """Whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    # OverflowError: a number in the file that is larger than the system's type for processes.
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True
