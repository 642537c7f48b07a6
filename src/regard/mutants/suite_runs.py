"""`mutate`: how many of the catalogue's mistakes does a test suite notice?

The suite is run on the target, which must pass, then on the target with one mistake at a time, all in one
process that forks for each (`worker`). This file does not know how a mutant is made.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.checker.catalogue import CATALOGUE, get_mistake
from regard.checker.errors import CheckError
from regard.checker.sandbox import run
from regard.mutants.report import MutantResult, MutationReport

WORKER = "regard.mutants.worker"
TIMEOUT = 600.0  # seconds for the suite without a mistake


def mutate(
    tests: Sequence[str],
    target: str,
    *,
    mistakes: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda line: None,
) -> MutationReport:
    """Run a test suite on a target with each mistake that it can have; say which were noticed.

    Arguments:
        tests: the tests as pytest takes them: files, folders, or `file.py::test_name`.
        target: the function under test, as `package.module:function` or `path/to/file.py:function`, or a
            module without weights of its own, whose `forward` takes queries, keys and values. It is
            replaced wherever it is bound, also under another name.
        mistakes: the names of the mistakes to try; None for all of them.
        timeout: seconds that the suite may take without a mistake. With one it may take four times as long
            as without, and 20 seconds at least; a suite that takes longer has noticed it.
        jobs: how many processes run at a time.
        tell: called with a line of progress for each mutant.

    Raises `CheckError`, a ValueError of one line, if the suite does not pass without a mistake.
    """
    for name in mistakes or ():
        get_mistake(name)
    if not timeout > 0 or jobs < 1:
        raise CheckError(f"expected a timeout above 0 and at least one job, got {timeout} and {jobs}")
    _check_target(target)
    if importlib.util.find_spec("pytest") is None:
        raise CheckError("regard mutate needs pytest, which is not installed: pip install pytest")
    if not hasattr(os, "fork"):
        raise CheckError("regard mutate needs a system that can fork processes: Linux, macOS or WSL")
    request: dict[str, Any] = {"tests": [_absolute(test) for test in tests], "spec": target}
    request |= {"mistakes": list(mistakes or ()), "timeout": timeout, "jobs": jobs, "path": [os.getcwd()]}

    def note(line: dict[str, Any]) -> None:
        if "tell" in line:
            tell(line["tell"])

    started = time.monotonic()
    # Each run has its own limit; this one, which no run of a suite comes near, only ends a worker that is
    # stuck: a suite may be run four times for each form of a mistake, for four times as long as at first.
    longest = 100.0 * (timeout + 60.0) * len(CATALOGUE)
    worker = run(WORKER, request, timeout=longest, tell=note)[0]
    last = worker.lines[-1] if worker.lines else {}
    if "error" in last:
        raise CheckError(str(last["error"]))
    if "report" not in last:
        raise CheckError(
            f"the process that runs the suite {worker.end or 'did not come to its end'} before its report"
        )
    fields = last["report"]
    results = [MutantResult(**result) for result in fields["results"]]
    seconds = time.monotonic() - started
    return MutationReport(target, tuple(tests), results, fields["left_out"], fields["baseline"], seconds)


def _check_target(target: str) -> None:
    """Raise CheckError for a target without a colon, with what it may have been meant to be."""
    place, colon, name = target.rpartition(":")
    if colon and name and not name.endswith(".py"):
        return
    place = target.rstrip(":")
    module, dot, function = place.rpartition(".")
    guess = f"{module}:{function}" if dot and function != "py" else f"{place}:function"
    raise CheckError(
        f"--target {target}: expected a module and a function with a colon between them, as "
        f"package.module:function or path/to/file.py:function; did you mean {guess}?"
    )


def _absolute(test: str) -> str:
    """Return a test with the absolute path of its file: tests may change the current folder."""
    path, separator, name = test.partition("::")
    if not Path(path).exists():
        raise CheckError(f"no file or folder {path}; expected tests as pytest takes them")
    return f"{Path(path).absolute()}{separator}{name}"
