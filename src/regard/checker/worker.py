"""The process in which code is checked: `python -m regard.checker.worker REQUEST`.

It reports its progress and its result as lines of JSON, in the file that the request names. `sandbox` starts
this process and reads the file; other workers share `run_request` with this one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from regard.checker.errors import CheckError, error_line
from regard.checker.subject.locate import locate

LONGEST = 2000  # characters of an error that are handed on; the code may have written any number into it


def limit_memory(gigabytes: float) -> None:
    """Limit the memory that this process may allocate beyond what it has now. Only Linux supports this."""
    try:
        import resource

        # RLIMIT_AS counts address space, of which the libraries of PyTorch have mapped gigabytes by now.
        with open("/proc/self/statm", encoding="ascii") as status:
            now = int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = now + int(gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        # A crash should not leave a core file of gigabytes in the author's folder.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: only time is limited
        return


def make_writer(result: str) -> Callable[..., None]:
    """Return a function that appends a line of JSON to the file `result`.

    If the author's code has forked this process, the fork ends there: one process gives one answer.
    """
    process = os.getpid()

    def write_line(**fields: Any) -> None:
        if os.getpid() != process:
            os._exit(0)
        with open(result, "a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    return write_line


def run_request(work: Callable[[dict[str, Any], Callable[..., None]], Any]) -> None:
    """Do the work of the request that this process was started with, write its result or error, and exit.

    `work` gets the request and a function that writes a line of progress; it returns plain data.
    """
    request: dict[str, Any] = json.loads(sys.argv[1])
    sys.argv = [sys.argv[0]]  # the author's code may parse it
    sys.path[:0] = request["path"]
    write_line = make_writer(request["result"])
    write_line(phase="importing")
    # Requests of several ranks have no limit.
    if "memory" in request:
        limit_memory(request["memory"])
    try:
        write_line(report=work(request, write_line))
    except CheckError as error:
        write_line(error=str(error)[:LONGEST])
    # SystemExit by `exit()` and KeyboardInterrupt are no subclasses of Exception.
    except BaseException as error:
        write_line(error=f"{request['spec']} could not be checked: {error_line(error)}")
    os._exit(0)  # without waiting for threads that the author's code may have started


def check_request(request: dict[str, Any], write_line: Callable[..., None]) -> dict[str, Any]:
    """Check the code that the request names."""
    # Here, since the worker of the lessons shares this file, and lesson 1 needs no checker.
    from regard.checker.checker import check

    thing = locate(request["spec"])
    write_line(phase="checking")
    options = request["options"]
    # JSON holds no functions, so that the request names them as `file.py:name`.
    options |= {name: locate(options[name]) for name in ("cached", "oracle") if options.get(name)}
    return check(thing, **options).to_dict()


if __name__ == "__main__":
    run_request(check_request)
