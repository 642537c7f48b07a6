"""One run of a test suite by pytest, on the target or on one of its mutants.

A plugin replaces the target, wherever it is bound, before the tests are collected and again afterwards. The
run stops at the first failure and leaves nothing in the user's folders: no cache, no bytecode, no examples.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from regard.checker.errors import CheckError
from regard.checker.subject.kernel_recognition import prepare_interpreter
from regard.checker.subject.locate import import_place, split
from regard.mutants.call_reader import read_signature
from regard.mutants.mutant import CallLog, all_mutants, make_mutant
from regard.mutants.suggestion import suggest_tests


def import_target(spec: str) -> tuple[Any, str, Any]:
    """Import `package.module:name` or `file.py:name`; return its owner, its name there, and the target.

    A file is imported by the name that a test beside it would use. The target of a module's class is its
    `forward`.
    """
    place, name = split(spec)
    if place.endswith(".py"):
        place = _module_name(Path(place).resolve())
    owner: Any = import_place(place, name)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    if not callable(target := getattr(owner, last, None)):
        raise CheckError(f"{place} has no function `{name}`; expected --target package.module:function")
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return target, "forward", target.forward
    return owner, last, target


def _module_name(path: Path) -> str:
    """Return the name by which a file is imported, with the folder that holds it on the path."""
    parts, home = [path.stem], path.parent
    while (home / "__init__.py").exists():
        parts.insert(0, home.name)
        home = home.parent
    sys.path.insert(0, str(home))
    importlib.invalidate_caches()
    return ".".join(parts)


def replace_everywhere(target: Any, new: Callable[..., Any]) -> None:
    """Put `new` in the place of `target` in every dict, list and closure that holds it.

    The names of modules are dicts, and so are registries of functions. Tuples and partial functions cannot
    be changed: a target that is held there alone is not called by its mutants, which their log shows.
    """
    number = id(target)  # a comprehension over `target` would hold it in a cell of its own
    own = {id(cell) for cell in getattr(new, "__closure__", None) or ()} | {id(new.__dict__)}
    for holder in gc.get_referrers(target):
        if id(holder) in own:
            continue
        if isinstance(holder, types.CellType):
            holder.cell_contents = new
        elif isinstance(holder, dict | list):
            places: Any = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
            for place in [place for place, value in places if id(value) == number]:
                holder[place] = new


LONGEST = 300  # characters of a failure that are handed on
MODULES = (
    "; a module with projections of its own is not replaced: name the function of queries, keys and values "
    "that it calls, as --target torch.nn.functional:scaled_dot_product_attention"
)


class SuiteObserver:
    """A pytest plugin that replaces the target once more after collection, and notes what happened."""

    def __init__(self, replace: Callable[[], None], only: str) -> None:
        self.replace, self.only = replace, only
        self.passed, self.failure, self.collected = 0, "", 0
        self.exit = ""  # how a file ends the process while it is imported

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of one file, if one is named: the others are collected for their conftest files."""
        if self.only:
            items[:] = [item for item in items if str(item.path) == self.only]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Replace what was bound while the tests were imported."""
        self.collected = len(session.items)
        self.replace()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the first file that cannot be collected."""
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self._note(f"{report.nodeid or 'the suite'} cannot be collected", lines[-1][1:] if lines else "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the tests that pass, and note the first that fails."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._note(report.nodeid, getattr(crash, "message", ""))
        elif report.passed and report.when == "call":
            self.passed += 1

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note an exit(), which pytest takes for an error of its own if it comes while a file is imported."""
        if isinstance(excinfo.value, SystemExit):
            file = os.path.basename(str(excinfo.traceback[-1].path))
            self.exit = (
                f"{file} ends the process by exit({excinfo.value.code!r}) while it is imported: put that "
                "under `if __name__ == '__main__':`, or into the test that needs it"
            )

    def _note(self, test: str, message: str) -> None:
        first = (message.strip().splitlines() or [""])[0].strip()
        self.failure = self.failure or f"{test}: {first}"[:LONGEST]


def run_suite(run: dict[str, Any]) -> dict[str, Any]:
    """Run tests and return what happened.

    `run` has the `tests`, the target's `spec`, the name of a `mutant` ("" for none), a `folder` for
    temporary files, the file to which the tests are limited (`only`), and the `survivors` for which tests
    are to be written, on `small` inputs or on those of the suite's sizes alone.
    """
    folder = run["folder"]
    # Children of the tests write no bytecode either; Hypothesis would keep examples in the current folder.
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": folder, "TMPDIR": folder}
    # pytest sets it for what a test imports; Triton's tutorial chooses the configuration of its kernel by it.
    os.environ["PYTEST_VERSION"] = pytest.__version__
    prepare_interpreter()
    owner, name, target = import_target(run["spec"])
    is_module = isinstance(owner, type) and issubclass(owner, torch.nn.Module)
    try:
        signature = read_signature(target)
    except ValueError as error:
        raise CheckError(f"{run['spec']}: {error}{MODULES if is_module else ''}") from None
    by_name = {mutant.name: mutant for mutant in all_mutants()}
    log = CallLog()
    new = make_mutant(target, by_name.get(run.get("mutant", "")), log, signature)

    original = (target,)  # a tuple, which keeps it: a variable of a closure would be replaced, too
    del target

    def replace() -> None:
        setattr(owner, name, new)
        replace_everywhere(original[0], new)

    replace()
    observer = SuiteObserver(replace, run.get("only", ""))
    try:
        code = int(pytest.main([*_options(folder), *run["tests"]], plugins=[observer]))
    except SystemExit as error:
        raise CheckError(f"the suite calls exit() while it is collected (code {error.code})") from None
    if observer.exit:
        raise CheckError(f"the suite cannot be run: {observer.exit}")
    report = {
        "code": code,
        "collected": observer.collected,
        "passed": observer.passed,
        "failure": observer.failure,
        "hint": MODULES if is_module and log.example is None else "",
        "layout": signature.layout,
        "arguments": sorted(signature.names),
        **log.to_dict(),
    }
    if "survivors" in run and log.example is not None:
        survivors = [by_name[survivor] for survivor in run["survivors"]]
        module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        spec = f"{module}:{run['spec'].rpartition(':')[2]}"
        report["tests"] = suggest_tests(
            original[0], owner, spec, signature, log.example, survivors, small=run.get("small", True)
        )
    return report


def _options(folder: str) -> list[str]:
    """Return pytest's options: stop at the first failure, run in this process, write nothing here."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--basetemp", f"{folder}/pytest"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-n", "0"]  # its workers would import the target without the mistake
    if importlib.util.find_spec("pytest_cov") is not None:
        options += ["--no-cov"]
    return options
