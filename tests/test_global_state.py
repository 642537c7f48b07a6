"""A test that leaves something behind fails and is named, and a failure says how to repeat the order."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import matplotlib
import pytest
from torch import nn

from tests import global_state

HERE = Path(__file__).parent


def hook(patch):
    patch.setitem(nn.modules.module._global_forward_hooks, 0, print)


CHANGES = {
    "working directory: ": lambda patch: patch.chdir("/"),
    "os.environ: LEFT_BEHIND was added": lambda patch: patch.setenv("LEFT_BEHIND", "1"),
    "os.environ: PATH is gone": lambda patch: patch.delenv("PATH"),
    "sys.modules: json changed": lambda patch: patch.setitem(sys.modules, "json", None),
    "Matplotlib's settings: font.size changed": lambda patch: patch.setitem(
        matplotlib.rcParams, "font.size", 3.5
    ),
    "torch.nn.Module: __call__ changed": lambda patch: patch.setattr(nn.Module, "__call__", print),
    "hooks on every module: _global_forward_hooks changed": hook,
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_was_patched_is_named(said):
    before = global_state.state()
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[said](patch)
        (found,) = global_state.changes(before)
    assert found.startswith(said)
    assert global_state.changes(before) == []


def test_what_runs_on_is_named_and_what_ends_is_waited_for(monkeypatch):
    before, enough = global_state.state(), threading.Event()
    thread = threading.Thread(target=enough.wait, name="waiting", daemon=True)
    thread.start()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with monkeypatch.context() as patch:
        patch.setattr(global_state, "HANGING", 0.0)
        found = global_state.changes(before)
    assert [line.split()[:2] for line in found] == [
        ["threads:", "waiting"],
        ["processes:", str(process.pid)],
    ]
    soon = threading.Timer(0.2, lambda: (enough.set(), process.communicate()))
    soon.start()
    assert global_state.changes(before) == []


LEAVES = """
import os, random

def test_leaves():
    os.environ["LEFT"] = "1"
    print("drew", random.random())
    assert False

def test_clean():
    pass
"""


@pytest.mark.at_length("test_what_was_patched_is_named")
def test_the_test_is_named_and_its_order_can_be_had_again(tmp_path):
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q", "--randomly-seed=25", tmp_path]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": path}
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
    assert "1 failed, 1 passed, 1 error" in said
    assert "test_leaves.py::test_leaves left something behind:" in said
    assert "os.environ: LEFT was added" in said
    assert said.splitlines()[-2] == "This order again: --randomly-seed=25"
