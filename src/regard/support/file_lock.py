"""A lock on what one process at a time may write: the folder of a run, the file of a survey.

The lock is `flock` on a small file, which the system releases when the process ends, however it ends. The
file names the owner, for the message to whoever comes second; after `kill -9` it stays, and locks nothing.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from regard.support.files import write_error

# Windows has no fcntl; `_flock` then warns and locks nothing.
if sys.platform != "win32":
    import fcntl

PATIENCE = 0.5
"""For so many seconds a lock is tried again: a child that a killed owner had just forked may not have run
yet, to let go of the lock."""
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # from a file system without flock


class InUseError(OSError):
    """Another run writes to the same place; the message says which one."""


class FileLock:
    """The lock `path` on `place`, a folder or a file, which messages name as the argument `name`.

    Creating the object takes the lock, or raises an `InUseError` that says who has it. It is held until
    `release`, the end of a `with` block, or the end of the process. A process that is forked meanwhile does
    not hold it. Where there is no `flock`, a warning says so and nothing is locked.
    """

    def __init__(self, path: Path, name: str, place: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        descriptor = -1
        while descriptor < 0:
            try:
                descriptor = _open_locked(path)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InUseError(
                        f"{name}: {place} is in use by {error}: wait until it ends, or choose another place"
                    ) from None
                time.sleep(0.02)
            except OSError as error:
                raise write_error(name, place, error) from None
        self._descriptor = descriptor
        _held.add(self)
        # finalize also runs at the end of the interpreter, where `__del__` of objects in cycles may not.
        self.release = weakref.finalize(self, _release, path, descriptor, os.getpid())

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_locked(path: Path) -> int:
    """Open and lock a file, and name this process in it; a BlockingIOError names the owner that there is."""
    while True:
        # O_NOFOLLOW (absent on Windows): a symbolic link at this name could have any file truncated below.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if not _flock(descriptor):
                # Anyone may have written the file: control characters would move the terminal's cursor.
                owner = os.read(descriptor, 200).decode(errors="replace")
                raise BlockingIOError("".join(x for x in owner if x.isprintable()) or "another process")
            # The owner before may have deleted the file between our open and our flock: then we hold a lock
            # on nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                    locked, descriptor = descriptor, -1
                    return locked
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _flock(descriptor: int) -> bool:
    """Lock an open file, and return whether it was free; where that is impossible, warn and go on."""
    try:
        # Raised as an error so that Windows takes the same way as a file system without flock.
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, "not on Windows")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        reason = f"there is no flock here ({error.strerror})"
        warnings.warn(f"{reason}: a second run in the same place would not be noticed", stacklevel=4)
    return True


def _release(path: Path, descriptor: int, owner: int) -> None:
    """Delete the file and let go of the lock, in the process that holds it."""
    if os.getpid() == owner:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close what a forked process inherits, which would keep the lock of a killed parent."""
    for lock in list(_held):
        if lock.release.alive:
            os.close(lock._descriptor)


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
