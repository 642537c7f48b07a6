"""`mutate`: how many of the catalogue's mistakes does a test suite notice?

The suite is run on the target, which must pass, then on the target with one mistake at a time, each in a
process of its own with a limit of time. This file does not know how a mutant is made.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.checker.catalogue import get_mistake
from regard.checker.errors import CheckError
from regard.checker.sandbox import run
from regard.mutants.mutant import Mutant, all_mutants, why_left_out, without_mutant
from regard.mutants.report import MutantResult, MutationReport

WORKER = "regard.mutants.worker"
TIMEOUT = 600.0  # seconds for the suite without a mistake
PATIENCE = 4.0  # how many times as long a suite may take on a mutant
SHORTEST = 20.0  # seconds that it may take at least
SEARCH = 40.0  # seconds of search for a test of one survivor, and a little more
ENDS = {
    1: "the suite fails without any mistake: {failure}; mend it first, or name the tests that pass",
    2: "the suite cannot be run: {failure}",
    3: "pytest failed inside itself: {failure}",
    4: "pytest does not take these tests: is the path right?",
    5: "the suite has no tests: name a file or a folder with tests",
}
"""What is said of a suite that does not pass, by pytest's exit code."""


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
        target: the function under test, as `package.module:function` or `path/to/file.py:function`. It is
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
    runs = SuiteRuns([_absolute(test) for test in tests], target, jobs)
    started = time.monotonic()
    baseline = runs.run_baseline(timeout)
    limit = max(SHORTEST, PATIENCE * (time.monotonic() - started))
    options = {*baseline["arguments"], *baseline["options"]}
    left_out = {} if mistakes else without_mutant()
    mutants: list[Mutant] = []
    for mutant in all_mutants():
        if mistakes and mutant.mistake not in mistakes:
            continue
        if reason := why_left_out(mutant, options, baseline["layout"]):
            left_out[mutant.name] = reason
        else:
            mutants.append(mutant)

    def note(index: int, line: dict[str, Any]) -> None:
        result = _judge(mutants[index], line)
        tell(f"{'killed  ' if result.killed else 'survived'} {result.name}")

    done = runs.run([{"mutant": mutant.name} for mutant in mutants], limit, note)
    results = [_judge(mutant, line) for mutant, line in zip(mutants, done, strict=True)]
    report = MutationReport(target, tuple(tests), results, left_out, baseline)
    _suggest(report, runs, limit, tell)
    report.seconds = time.monotonic() - started
    return report


def _absolute(test: str) -> str:
    """Return a test with the absolute path of its file: tests may change the current folder."""
    path, separator, name = test.partition("::")
    if not Path(path).exists():
        raise CheckError(f"no file or folder {path}; expected tests as pytest takes them")
    return f"{Path(path).absolute()}{separator}{name}"


class SuiteRuns:
    """Runs a test suite on a target and its mutants, in processes of their own."""

    def __init__(self, tests: list[str], target: str, jobs: int) -> None:
        self.tests, self.target, self.jobs = tests, target, jobs

    def run(
        self,
        runs: list[dict[str, Any]],
        limit: float,
        tell: Callable[[int, dict[str, Any]], None] = lambda index, line: None,
    ) -> list[dict[str, Any]]:
        """Do some runs (see `one_run.run_suite`), each for `limit` seconds at most.

        Returns for each its "report", an "error", or how it came to an "end" without either. `tell` is called
        with the number of a run and its result as soon as that is there.
        """
        if importlib.util.find_spec("pytest") is None:
            raise CheckError("regard mutate needs pytest, which is not installed: pip install pytest")
        if not hasattr(os, "fork"):
            raise CheckError("regard mutate needs a system that can fork processes: Linux, macOS or WSL")
        done: dict[int, dict[str, Any]] = {}

        def note(line: dict[str, Any]) -> None:
            if "done" in line:
                done[line["done"]] = line["result"]
                tell(line["done"], line["result"])

        all_runs = [{"tests": self.tests} | fields for fields in runs]
        request: dict[str, Any] = {"runs": all_runs, "spec": self.target}
        request |= {"jobs": self.jobs, "limit": limit, "path": [os.getcwd()]}
        # Each run has its own limit; this one only ends a worker that is stuck.
        worker = run(WORKER, request, timeout=2 * limit * len(runs) + 60.0, tell=note)[0]
        if worker.lines and "error" in worker.lines[-1]:
            raise CheckError(str(worker.lines[-1]["error"]))
        if len(done) < len(runs):
            how = worker.end or "did not come to its end"
            raise CheckError(
                f"the process that runs the suite {how}: {len(done)} of {len(runs)} runs were done"
            )
        return [done[i] for i in range(len(runs))]

    def run_baseline(self, timeout: float) -> dict[str, Any]:
        """Run the suite on the target without a mistake; CheckError says why that does not serve."""
        (line,) = self.run([{}], timeout)
        if "error" in line:
            raise CheckError(str(line["error"]))
        if line.get("end") == "is too slow":
            raise CheckError(
                f"the suite did not finish within {timeout:g} s without any mistake: a test hangs, or it "
                f"needs more time: --timeout {timeout * 4:g}"
            )
        if "report" not in line:
            raise CheckError(f"the suite {line['end']} before its end: does a test end the process?")
        report: dict[str, Any] = line["report"]
        if report["code"] in ENDS:
            raise CheckError(ENDS[report["code"]].format(failure=report["failure"] or "it says no more"))
        if not report["calls"]:
            raise CheckError(
                f"the suite passes without a single call of {self.target}: do the tests call another "
                "function, or call it in a process of their own?"
            )
        if not report["read"]:
            reason = max(report["unread"], key=report["unread"].get)
            raise CheckError(
                f"none of the {report['calls']} calls of {self.target} could be read as attention: {reason}; "
                f"regard check {self.target} says more"
            )
        return report


def _judge(mutant: Mutant, line: dict[str, Any]) -> MutantResult:
    """Return what became of a mutant."""
    report = line.get("report")
    if report is None:
        how = line.get("error") or f"the suite {line['end']}"
        return MutantResult(mutant.name, mutant.mistake, True, how)
    return MutantResult(
        mutant.name,
        mutant.mistake,
        report["code"] != 0,
        report["failure"],
        difference=report["difference"],
        reasons=sorted(report["reasons"], key=report["reasons"].get, reverse=True),
    )


def _suggest(report: MutationReport, runs: SuiteRuns, limit: float, tell: Callable[[str], None]) -> None:
    """Give each survivor a test that would have noticed it, and verify that the test does.

    A survivor for which there can be no such test is left out: the target has the same answer, or refuses
    every input on which the mistake shows. One for which none was found in time stays a survivor.
    """
    if not report.survivors:
        return
    names = [result.name for result in report.survivors]
    (line,) = runs.run([{"survivors": names}], limit + SEARCH * len(names))
    found: dict[str, dict[str, str]] = line.get("report", {}).get("tests", {})
    with tempfile.TemporaryDirectory() as folder:
        verifications = []
        for i, result in enumerate(report.survivors):
            suggestion = found.get(result.name, {})
            if "reason" in suggestion:
                report.results.remove(result)
                report.left_out[result.name] = suggestion["reason"]
            if "text" not in suggestion:
                continue
            result.test = suggestion["text"]
            path = Path(folder).resolve() / f"test_survivor_{i}.py"
            path.write_text(result.test, encoding="utf-8")
            one = {"tests": [*runs.tests, str(path)], "only": str(path)}
            verifications += [one, one | {"mutant": result.name}]
        done = [line.get("report", {}).get("code") for line in runs.run(verifications, limit)]
    written = [result for result in report.survivors if result.test]
    for result, codes in zip(written, zip(done[::2], done[1::2], strict=True), strict=True):
        result.verified = codes == (0, 1)
        tell(f"{'a test kills it' if result.verified else 'its test is not verified'}: {result.name}")
