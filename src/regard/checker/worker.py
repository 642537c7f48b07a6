"""The process in which somebody else's code is checked: `python -m regard.checker.worker REQUEST`.

It says where it is, line by line in JSON, in the file that the request names. See `sandbox` for the other
side.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from regard.checker.checker import check
from regard.checker.subject.construct import CheckError
from regard.checker.subject.locate import locate


def limit_memory(gigabytes: float) -> None:
    """Let this process take so much more memory than it has now, where the system can say so."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as status:
            now = int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = now + int(gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: only time is limited
        return


def main() -> None:
    """Check what the request names."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    sys.argv = [sys.argv[0]]  # the author's code may look at it

    def say(**words: Any) -> None:
        with open(request["result"], "a", encoding="utf-8") as result:
            result.write(json.dumps(words) + "\n")

    say(phase="importing")
    limit_memory(request["memory"])
    try:
        thing = locate(request["spec"])
        say(phase="checking")
        say(report=check(thing, **request["options"]).to_dict())
    except CheckError as error:
        say(cannot=str(error))
    except (Exception, SystemExit) as error:
        text = (str(error).strip().splitlines() or [""])[0]
        say(cannot=f"{request['spec']} could not be checked: {type(error).__name__}: {text}")
    os._exit(0)  # without waiting for threads that the author's code may have left


if __name__ == "__main__":
    main()
