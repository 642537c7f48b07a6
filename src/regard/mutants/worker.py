"""The process that runs a test suite on mutants: `python -m regard.mutants.worker REQUEST`.

It does every run in a fork of its own, so that what a test does to its process ends with it: the suite on the
target, on each mutant, the search for tests of the survivors, and the verification of these tests.
`suite_runs` starts this process, once.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from regard.checker.errors import CheckError, error_line
from regard.checker.sandbox import run_request
from regard.mutants.mutant import Mutant, all_mutants, why_left_out, without_mutant
from regard.mutants.one_run import run_suite
from regard.mutants.report import MutantResult

INTERVAL = 0.02  # seconds between two looks at the forks
TOO_SLOW = "is too slow"  # the end of a run that is over its time


def run_forks(
    runs: list[dict[str, Any]],
    folder: Path,
    *,
    jobs: int,
    limit: float,
    tell: Callable[[int, dict[str, Any]], None] = lambda index, result: None,
) -> list[dict[str, Any]]:
    """Do some runs (see `one_run.run_suite`), each in a fork of its own.

    Arguments:
        runs: the arguments of each.
        folder: where each may write, in a folder of its own; it is made.
        jobs: how many forks run at a time.
        limit: seconds that each may take.
        tell: called with the number of a run and its result as soon as that is there.

    Returns for each its "report", an "error", or how it came to an "end" without either.
    """
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    waiting = list(enumerate(runs))
    running: dict[int, tuple[Any, float]] = {}  # by the number of a run: its fork, and when its time is over
    results: dict[int, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            index, fields = waiting.pop(0)
            process = context.Process(target=_run, args=(fields | {"folder": str(folder / str(index))},))
            process.start()
            running[index] = process, time.monotonic() + limit
        time.sleep(INTERVAL)
        for index, (process, end) in list(running.items()):
            if process.is_alive() and time.monotonic() < end:
                continue
            code = process.exitcode
            _end(process)
            del running[index]
            how = TOO_SLOW if code is None else "exits" if code >= 0 else f"crashes with signal {-code}"
            results[index] = _read(folder / str(index) / "result") or {"end": how}
            tell(index, results[index])
    return [results[index] for index in range(len(runs))]


def _run(fields: dict[str, Any]) -> None:
    """Do a run in this fork, and write its result."""
    # A group of its own, so that what a test starts ends with it.
    os.setpgid(0, 0)
    folder = Path(fields["folder"])
    folder.mkdir()
    try:
        result: dict[str, Any] = {"report": run_suite(fields)}
    except CheckError as error:
        result = {"error": str(error)}
    # SystemExit by `exit()` is no subclass of Exception.
    except BaseException as error:
        result = {"error": f"the suite could not be run: {error_line(error)}"}
    (folder / "part").write_text(json.dumps(result), encoding="utf-8")
    os.replace(folder / "part", folder / "result")  # so that it is there as a whole or not at all
    os._exit(0)


def _end(process: Any) -> None:
    with contextlib.suppress(OSError):  # it has not made its group yet, or the group is gone
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return result


PATIENCE = 4.0  # how many times as long a suite may take on a mutant
SHORTEST = 20.0  # seconds that it may take at least
SEARCH = 40.0  # seconds of search for a test of one survivor, and a little more
WARM_UP = """import torch


def test_warm_up():
    torch.testing.assert_close(torch.zeros(1), torch.zeros(1))
"""
ENDS = {
    1: "the suite fails without any mistake: {failure}; mend it first, or name the tests that pass",
    2: "the suite cannot be run: {failure}",
    3: "pytest failed inside itself: {failure}",
    4: "pytest does not take these tests: is the path right?",
    5: "the suite has no tests: name a file or a folder with tests",
}
"""What is said of a suite that does not pass, by pytest's exit code."""


def run_mutants(request: dict[str, Any], write_line: Callable[..., None]) -> dict[str, Any]:
    """Run a suite on the target and its mutants; return the fields of a `MutationReport`."""
    sys.dont_write_bytecode = True
    # Folders for what the tests write, inside the one that is removed with this process.
    folder = Path(tempfile.mkdtemp())
    _warm_up(folder)
    all_mutants()  # reads the catalogue, which every fork needs
    # A fork would look for garbage among a million objects, which takes longer than a small suite.
    gc.collect()
    gc.freeze()
    write_line(phase="testing")
    runs = SuiteRuns(request["tests"], request["spec"], request["jobs"], folder)
    started = time.monotonic()
    baseline = runs.run_baseline(request["timeout"])
    limit = max(SHORTEST, PATIENCE * (time.monotonic() - started))
    mutants, left_out = _choose(request["mistakes"], baseline)

    count = itertools.count(1)

    def note(index: int, line: dict[str, Any]) -> None:
        # The search for a test may later find that one that is not noticed here is no mistake.
        result = _judge(mutants[index], line)
        how = f"killed {result.name}" if result.killed else f"not noticed {result.name}: {result.why}"
        write_line(tell=f"{next(count)} of {len(mutants)}: {how}")

    done = runs.run([{"mutant": mutant.name} for mutant in mutants], limit, note)
    results = [_judge(mutant, line) for mutant, line in zip(mutants, done, strict=True)]
    survivors = [result for result in results if not result.killed]
    left_out |= _suggest(survivors, runs, limit)
    for result in survivors:
        if result.name in left_out:
            write_line(tell=f"left out {result.name}: {left_out[result.name]}")
            continue
        verified = "a test that kills it was found" if result.verified else "its test is not verified"
        write_line(tell=f"survived {result.name}: {verified if result.test else result.unwritten}")
    results = [result for result in results if result.name not in left_out]
    return {"results": [asdict(result) for result in results], "left_out": left_out, "baseline": baseline}


def _warm_up(folder: Path) -> None:
    """Run a test of one line, so that pytest, its plugins and what comparisons need are imported once."""
    test = folder / "test_warm_up.py"
    test.write_text(WARM_UP, encoding="utf-8")
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull, str(test)])


def _choose(mistakes: list[str] | None, baseline: dict[str, Any]) -> tuple[list[Mutant], dict[str, str]]:
    """Return the mutants that the target can have, and why the others are left out."""
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
    return mutants, left_out


class SuiteRuns:
    """Runs a test suite on a target and its mutants, in forks of this process."""

    def __init__(self, tests: list[str], target: str, jobs: int, folder: Path) -> None:
        self.tests, self.target, self.jobs, self.folder = tests, target, jobs, folder

    def run(
        self,
        runs: list[dict[str, Any]],
        limit: float,
        tell: Callable[[int, dict[str, Any]], None] = lambda index, line: None,
    ) -> list[dict[str, Any]]:
        """Do some runs; see `run_forks`."""
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "runs"
        all_runs = [{"tests": self.tests, "spec": self.target} | fields for fields in runs]
        return run_forks(all_runs, folder, jobs=self.jobs, limit=limit, tell=tell)

    def run_baseline(self, timeout: float) -> dict[str, Any]:
        """Run the suite on the target without a mistake; CheckError says why that does not serve."""
        (line,) = self.run([{}], timeout)
        if "error" in line:
            raise CheckError(str(line["error"]))
        if line.get("end") == TOO_SLOW:
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
                f"none of the {report['calls']} calls of {self.target} could be read as attention: {reason}"
                f"{report['hint']}; regard check {self.target} says more"
            )
        return report


def _judge(mutant: Mutant, line: dict[str, Any]) -> MutantResult:
    report = line.get("report")
    if report is None:
        how = line.get("error") or f"the suite {line['end']}"
        return MutantResult(mutant.name, mutant.mistake, True, how, late=line.get("end") == TOO_SLOW)
    return MutantResult(
        mutant.name,
        mutant.mistake,
        report["code"] != 0,
        report["failure"],
        difference=report["difference"],
        reasons=sorted(report["reasons"], key=report["reasons"].get, reverse=True),
    )


def _suggest(survivors: list[MutantResult], runs: SuiteRuns, limit: float) -> dict[str, str]:
    """Give each survivor a test that would have noticed it, and verify that the test does.

    Returns the survivors for which there can be no such test, each with the reason: the target has the same
    answer, or refuses every input on which the mistake shows. One for which none was found in time stays a
    survivor.
    """
    if not survivors:
        return {}
    names = [result.name for result in survivors]
    (line,) = runs.run([{"survivors": names}], limit + SEARCH * len(names))
    lines = [line] * len(names)
    if line.get("end", TOO_SLOW) != TOO_SLOW:
        # A kernel may read beyond inputs that are smaller than its blocks, and crash: Triton's tutorial does.
        lines = runs.run([{"survivors": [name], "small": False} for name in names], limit + SEARCH)
    suggestions: dict[str, dict[str, str]] = {}
    for name, line in zip(names, lines, strict=True):
        why = line.get("error") or f"the suite {line.get('end', 'makes no call that is read')}"
        suggestions[name] = {"unwritten": f"none could be written: {why}"}
        suggestions |= line.get("report", {}).get("tests", {})
    verifications, written = [], []
    for i, result in enumerate(survivors):
        found = suggestions[result.name]
        result.unwritten = found.get("unwritten", "")
        if (text := found.get("text")) is None:
            continue
        result.test = text
        path = runs.folder.resolve() / f"test_survivor_{i}.py"
        path.write_text(text, encoding="utf-8")
        one = {"tests": [*runs.tests, str(path)], "only": str(path)}
        verifications += [one, one | {"mutant": result.name}]
        written.append(result)
    codes = [line.get("report", {}).get("code") for line in runs.run(verifications, limit)]
    for result, pair in zip(written, zip(codes[::2], codes[1::2], strict=True), strict=True):
        result.verified = pair == (0, 1)
    return {name: found["reason"] for name, found in suggestions.items() if "reason" in found}


if __name__ == "__main__":
    run_request(run_mutants)
