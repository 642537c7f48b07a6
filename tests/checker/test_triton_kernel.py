"""A small Triton kernel under `regard check`, interpreted: right as it is, and planted mistakes are named.

Whether Triton interprets is settled once for a process, so the kernel runs in processes of its own; without a
patch of one's own, although NumPy 2.4 breaks the interpreter of Triton 3.6.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
KERNEL = Path(__file__).parent / "triton_kernel.py"


def run(tmp_path, mistake, **environment):
    (tmp_path / "mine.py").write_text(f"{KERNEL.read_text()}\n\nattention = kernel({mistake!r})\n")
    return subprocess.run(
        [sys.executable, "-m", "regard", "check", "mine.py:attention", "--json", "--timeout", "300"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"} | environment,
    )


@pytest.mark.at_length("test_without_a_device_the_interpreter_is_named")
def test_a_right_kernel_is_right(tmp_path):
    done = run(tmp_path, "", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert not report["diagnoses"]
    details = {check["name"]: check["detail"] for check in report["checks"] if check["status"] == "skipped"}
    assert "it has no backward pass" in details["gradients"]
    assert "Triton's interpreter computes it wrongly" in details["bfloat16"]


# These and others are planted on CUDA, where they run faster: tests/gpu.
PLANTED = ["window-off-by-one", "grouped-heads-tiled", "stale-keys", "sink-of-another-head"]


@pytest.mark.at_length("test_without_a_device_the_interpreter_is_named")  # each takes a quarter minute
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_named(tmp_path, mistake):
    done = run(tmp_path, mistake, TRITON_INTERPRET="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["diagnoses"][0]["name"] == mistake


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel runs here")
def test_without_a_device_the_interpreter_is_named(tmp_path):
    done = run(tmp_path, "")
    assert done.returncode == 2
    assert "set TRITON_INTERPRET=1" in json.loads(done.stdout)["error"]
