"""A small Triton kernel under `regard.check`, interpreted: right as it is, and planted mistakes are named.

Whether Triton interprets is settled once for a process, so the kernel runs in processes of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
QUIETLY = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]


@pytest.mark.parametrize("part", ["test_right", "test_planted"])
def test_interpreted(part):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", HERE / "interpreted_kernel.py", "-k", part, *QUIETLY],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
