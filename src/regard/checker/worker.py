"""The process in which code is checked: `python -m regard.checker.worker REQUEST`.

It reports its progress and its result as lines of JSON, in the file that the request names. `sandbox` starts
this process and reads the file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from regard.checker.checker import check
from regard.checker.errors import CheckError
from regard.checker.subject.locate import locate


def limit_memory(gigabytes: float) -> None:
    """Limit the memory that this process may allocate beyond what it has now. Only Linux supports this."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as status:
            now = int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = now + int(gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: only time is limited
        return


def end_with_parent(parent: int, folder: Path) -> None:
    """End this process and all that it started, and remove `folder`, if the parent process is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        shutil.rmtree(folder, ignore_errors=True)
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Check the code that the request names."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    sys.argv = [sys.argv[0]]  # the author's code may parse it
    end_with_parent(request["parent"], Path(request["result"]).parent)

    def write_line(**fields: Any) -> None:
        with open(request["result"], "a", encoding="utf-8") as result:
            result.write(json.dumps(fields) + "\n")

    write_line(phase="importing")
    limit_memory(request["memory"])
    try:
        thing = locate(request["spec"])
        write_line(phase="checking")
        options = request["options"]
        options |= {name: locate(options[name]) for name in ("cached", "oracle") if options.get(name)}
        write_line(report=check(thing, **options).to_dict())
    except CheckError as error:
        write_line(error=str(error))
    except (Exception, SystemExit) as error:
        text = (str(error).strip().splitlines() or [""])[0]
        write_line(error=f"{request['spec']} could not be checked: {type(error).__name__}: {text}")
    os._exit(0)  # without waiting for threads that the author's code may have started


if __name__ == "__main__":
    main()
