"""A lock on what one process at a time may write: the folder of a run, the file of a survey.

The lock is `filelock`'s, which the system releases when the process ends, however it ends, and which a child
that is forked does not hold. The file names the owner, for the message to whoever comes second;
after `kill -9` it stays, and locks nothing.
"""

from __future__ import annotations

import errno
import os
import socket
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.support.files import write_error

PATIENCE = 0.5
"""For so many seconds a lock is tried again: a child that a killed owner had just forked may not have run
yet, to let go of the lock."""


class InUseError(OSError):
    """Another run writes to the same place; the message says which one."""


class FileLock:
    """The lock `path` on `place`, a folder or a file, which messages name as the argument `name`.

    Creating the object takes the lock, or raises an `InUseError` that says who has it. It is held until
    `release`, the end of a `with` block, or the end of the process. Where there is no `flock`, a warning says
    so and nothing is locked.
    """

    def __init__(self, path: Path, name: str, place: Path) -> None:
        # Imported here: it takes as long as the rest of this package.
        import filelock

        # A soft lock, the library's way out without flock, would outlive a process that is killed.
        lock = filelock.FileLock(path, PATIENCE, poll_interval=0.02, fallback_to_soft=False)
        try:
            lock.acquire()
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        except filelock.Timeout:
            # Anyone may have written the file: control characters would move the terminal's cursor.
            found = path.read_bytes()[:200].decode(errors="replace") if path.is_file() else ""
            owner = "".join(x for x in found if x.isprintable()) or "another process"
            raise InUseError(
                f"{name}: {place} is in use by {owner}: wait until it ends, or choose another place"
            ) from None
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise write_error(name, place, error) from None
            reason = f"there is no flock here ({error.strerror})"
            warnings.warn(f"{reason}: a second run in the same place would not be noticed", stacklevel=3)
        # finalize also runs at the end of the interpreter, where `__del__` of objects in cycles may not.
        self.release = weakref.finalize(self, _release, path, lock, os.getpid())

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _release(path: Path, lock: Any, owner: int) -> None:
    """Delete the file and let go of the lock, in the process that holds it."""
    if os.getpid() == owner:
        with suppress(OSError):
            path.unlink()
        lock.release()
