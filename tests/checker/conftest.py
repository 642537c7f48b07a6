"""What a test planted is gone when it is over; and the command, checking in this process."""

import importlib
import os
import sys

import pytest

from regard.checker import Report, sandbox
from regard.checker.subject.locate import split
from regard.checker.worker import check_request
from tests.checker import planting


@pytest.fixture(autouse=True)
def _uprooted():
    yield
    planting.uproot()


@pytest.fixture
def in_this_process(monkeypatch, tmp_path_factory):
    """`regard check` without a process of its own, whose start takes seconds: `test_sandbox` has that."""

    def check_here(spec, options, **limits):
        split(spec)
        places, modules = sys.path.copy(), set(sys.modules)
        sys.path.insert(0, os.getcwd())
        importlib.invalidate_caches()  # the test may have written a file since the last check
        try:
            return Report.from_dict(check_request({"spec": spec, "options": options}, lambda **line: None))
        finally:
            sys.path[:] = places
            for name in set(sys.modules) - modules:
                if str(tmp_path_factory.getbasetemp()) in str(vars(sys.modules[name]).get("__spec__")):
                    del sys.modules[name]

    monkeypatch.setattr(sandbox, "check_in_process", check_here)
