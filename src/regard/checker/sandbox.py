"""Running code in processes of their own, with limits on time and memory.

A hang, a crash, an `exit()`, a training loop at module level or an allocation of gigabytes ends in a clear
error, not in a dead checker. A worker, as `python -m regard.checker.worker REQUEST`, calls `run_request`,
which reports its progress and its result as lines of JSON in a file; nothing is unpickled, and the code's own
output cannot be taken for the report. The processes end with this one (`supervision`).
This contains accidents; it does not stop malicious code.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.checker.errors import CheckError, error_line
from regard.checker.reports.report import Report
from regard.checker.subject.locate import split
from regard.support.supervision import Supervision

TIMEOUT, MEMORY = 60.0, 4.0  # seconds, gigabytes
LEAST_MEMORY = 1.0  # gigabytes, of which PyTorch's own libraries take half
STARTING = 300.0  # seconds for Python and PyTorch to start, on a busy machine
INTERVAL = 0.02  # seconds between two looks at the result
LONGEST = 2000  # characters of an error that are handed on; the code may have written any number into it


def check_in_process(
    spec: str, options: dict[str, Any], *, timeout: float = TIMEOUT, memory: float = MEMORY
) -> Report:
    """Run `regard.check` in a process of its own.

    Arguments:
        spec: `path/to/file.py:Name` or `package.module:Name`.
        options: keyword arguments of `check`.
        timeout: seconds that the code may run.
        memory: gigabytes that it may allocate.

    Returns the report; raises `CheckError` if the process ended without one.
    """
    place, _ = split(spec)
    request = {"spec": spec, "options": options}
    last = run_in_process("regard.checker.worker", request, place, spec, timeout=timeout, memory=memory)
    return Report.from_dict(last["report"])


def run_in_process(
    module: str,
    request: dict[str, Any],
    place: str,
    spec: str,
    *,
    timeout: float = TIMEOUT,
    memory: float = MEMORY,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a worker module on a request, with limits; return the last line of JSON that it wrote.

    `place` is the author's file and `spec` what is run of it, for messages. `tell` is called with each line
    that the worker writes on the way. Raises `CheckError` if the worker wrote an error or no `"report"`.
    """
    # Written so that NaN is refused, too.
    if not timeout > 0:
        raise CheckError(f"timeout: expected a number of seconds above 0, got {timeout:g}")
    if not memory >= LEAST_MEMORY:
        raise CheckError(
            f"memory: expected at least {LEAST_MEMORY:g} GB, half of which PyTorch takes before any code is "
            f"run, got {memory:g}; without --memory it is {MEMORY:g}"
        )
    request = request | {"memory": memory, "path": [os.getcwd()]}  # the code may import its neighbours
    worker = run(module, request, timeout=timeout, tell=tell)[0]
    last = worker.lines[-1] if worker.lines else {}
    if "report" in last:
        return last
    if "error" in last:
        error = str(last["error"])
        raise CheckError(
            f"{error} (the limit is {memory:g} GB: --memory)" if _NO_MEMORY.search(error) else error
        )
    raise CheckError(_describe_end(worker.end, last.get("phase", "starting"), place, spec, timeout, memory))


@dataclass
class WorkerResult:
    """The lines of JSON that a worker wrote, and how its process ended, "" if it was still running."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    end: str = ""

    @property
    def has_finished(self) -> bool:
        """Whether the worker has done what it was asked to, or has said why it cannot."""
        return bool(self.lines) and ("report" in self.lines[-1] or "error" in self.lines[-1])


def run(
    module: str,
    request: dict[str, Any],
    *,
    timeout: float = TIMEOUT,
    ranks: int = 1,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> list[WorkerResult]:
    """Run a worker module (see `run_request`) in one process or in several that work together.

    They are ended once all of them have finished, one of them has ended early or the time is over. None is
    left running.

    Arguments:
        module: what each process runs.
        request: the arguments of the work as plain data; each process also finds its `rank` there, the number
            of `ranks` and a path `store` at which they can meet.
        timeout: seconds that they may run, once all of them have started.
        ranks: how many processes.
        tell: called with each line that one of them writes.
    """
    with Supervision("check") as processes:
        paths = [processes.folder / f"result-{rank}" for rank in range(ranks)]
        store = str(processes.folder / "store")
        for rank, path in enumerate(paths):
            own = {"rank": rank, "ranks": ranks, "store": store, "result": str(path)}
            environment = _rank_environment(rank, ranks) if ranks > 1 else {}
            processes.start(module, json.dumps(request | own), environment)
        workers = [WorkerResult() for _ in paths]
        has_started, end = False, time.monotonic() + STARTING
        while time.monotonic() < end:
            time.sleep(INTERVAL)
            for rank, worker in enumerate(workers):
                worker.end = processes.describe_end(rank)  # asked before its last lines are read
                before, worker.lines = worker.lines, read_lines(paths[rank])
                for line in worker.lines[len(before) :]:
                    tell(line)
            if not has_started and all(worker.lines for worker in workers):
                has_started, end = True, time.monotonic() + timeout  # the clock starts when the code does
            finished = [worker.has_finished for worker in workers]
            if all(finished) or any(w.end and not w.has_finished for w in workers):
                break
        return workers


def _rank_environment(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment of a process that works with others, as `torchrun` would set it."""
    environment = {"REGARD_RANK": "1", "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    # Gloo would bind to the address of the host's name, which need not resolve. Only Linux has a `lo`.
    if os.path.exists("/sys/class/net/lo"):
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def read_lines(result: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON that a process has written to a file so far."""
    try:
        lines = result.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
        return [json.loads(line) for line in lines]
    # The worker creates it with its first line.
    except FileNotFoundError:
        return []
    except ValueError:
        raise CheckError("the code has written into the file of its own result: no verdict") from None


def _describe_end(end: str, phase: str, place: str, spec: str, timeout: float, memory: float) -> str:
    """Explain why there is no report: how the process ended, or that the time was over."""
    if not end:
        return {
            "starting": f"Python and PyTorch did not start within {STARTING:g} s: is the machine busy?",
            "importing": f"{place} was still being imported after {timeout:g} s: put code that is only for a "
            'script (a training loop?) under if __name__ == "__main__":, or allow more time with --timeout',
        }.get(
            phase,
            f"{spec} did not finish within {timeout:g} s: it hangs, or needs more time: "
            f"--timeout {timeout * 4:g}",
        )
    doing = {"starting": "Python and PyTorch were starting", "importing": f"{place} was being imported"}
    sentence = f"the process {end} while {doing.get(phase, f'{spec} was being checked')}"
    # An std::bad_alloc that nothing catches ends in abort().
    if end.startswith("crashed with SIGABRT"):
        return f"{sentence} (out of memory? the limit is {memory:g} GB: --memory)"
    return f"{sentence}: it calls os._exit or sys.exit" if end.startswith("exited") else sentence


# Python, PyTorch's allocator, its C++ code and the operating system each have words of their own.
_NO_MEMORY = re.compile(
    "can't allocate memory|MemoryError|not enough memory|std::bad_alloc|Cannot allocate|failed to map segment"
)


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
